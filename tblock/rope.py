"""Rotary position embedding: inverse frequencies, their context-extension scalings, and the cos/sin tables.

All of it in numpy float64; the tables are rounded once, to the dtype the rotation computes in. Sources: Su
et al. 2021; linear scaling (Chen et al. 2023); llama3 (Llama 3.1 release); YaRN (Peng et al. 2023).
"""

import math

import numpy as np
from numpy.typing import NDArray

from tblock.config import BlockConfig


def inverse_frequencies(config: BlockConfig) -> NDArray[np.float64]:
    """Radians per position of each rotated pair, scaling applied.

    Returns:
        [R/2] float64.
    """
    width = config.rope_dim
    plain = config.rope_base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    if config.rope_scaling == "linear":
        return plain / config.rope_factor
    if config.rope_scaling == "llama3":
        return _llama3(config, plain)
    if config.rope_scaling == "yarn":
        return _yarn(config, plain)
    return plain


def rope_tables(config: BlockConfig, positions: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """cos and sin of every position's angles.

    Args:
        config: with rope=True.
        positions: rows; positions 0 .. positions - 1.

    Returns:
        cos, sin: each [positions, R/2] float64.
    """
    angles = np.outer(np.arange(positions, dtype=np.float64), inverse_frequencies(config))
    # In place: over a context of 131,072 positions each array is as large as a weight matrix.
    cos, sin = np.cos(angles), np.sin(angles, out=angles)
    if config.rope_attention_factor != 1.0:
        cos *= config.rope_attention_factor
        sin *= config.rope_attention_factor
    return cos, sin


def _llama3(config: BlockConfig, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    old = float(config.rope_original_max_position or 0)
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    turns = old * plain / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (blend + (1.0 - blend) / config.rope_factor)


def _yarn(config: BlockConfig, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    width, old = config.rope_dim, float(config.rope_original_max_position or 0)

    def pair_with(turns: float) -> float:
        return width * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(config.rope_base))

    first = max(math.floor(pair_with(config.rope_beta_fast)), 0)
    last = min(math.ceil(pair_with(config.rope_beta_slow)), width - 1)
    ramp = np.clip((np.arange(width // 2) - first) / max(last - first, 0.001), 0.0, 1.0)
    return plain * (1.0 - ramp) + plain / config.rope_factor * ramp
