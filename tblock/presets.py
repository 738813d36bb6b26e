"""Named BlockConfigs of published models, one row each. Imports only the standard library."""

import difflib
from typing import Any

from tblock.config import BlockConfig
from tblock.errors import ConfigError

_LLAMA3: dict[str, Any] = {"norm_eps": 1e-5, "rope_base": 500000.0, "max_position": 131072}
_LLAMA32_ROPE: dict[str, Any] = {"rope_scaling": "llama3", "rope_original_max_position": 8192}

PRESETS: dict[str, BlockConfig] = {
    "tiny": BlockConfig(dim=64, num_heads=4, num_kv_heads=2, num_layers=2, max_position=512),
    "transformer-2017": BlockConfig(
        dim=512, num_heads=8, num_layers=6, max_position=512, norm="layernorm", norm_position="post",
        norm_eps=1e-5, causal=False, rope=False, ffn="relu", ffn_bias=True,
    ),
    "gpt2": BlockConfig(
        dim=768, num_heads=12, num_layers=12, max_position=1024, norm="layernorm", norm_eps=1e-5, rope=False,
        q_bias=True, k_bias=True, v_bias=True, out_bias=True, ffn="gelu_tanh", ffn_bias=True,
    ),
    "bert-base": BlockConfig(
        dim=768, num_heads=12, num_layers=12, max_position=512, norm="layernorm", norm_position="post",
        norm_eps=1e-12, causal=False, rope=False, q_bias=True, k_bias=True, v_bias=True, out_bias=True,
        ffn="gelu", ffn_bias=True,
    ),
    "smollm2-135m": BlockConfig(
        dim=576, num_heads=9, num_kv_heads=3, num_layers=30, max_position=8192, norm_eps=1e-5,
        rope_base=100000.0, ffn_dim=1536,
    ),
    "llama-3.2-1b": BlockConfig(
        dim=2048, num_heads=32, num_kv_heads=8, num_layers=16, ffn_dim=8192, rope_factor=32.0, **_LLAMA3,
        **_LLAMA32_ROPE,
    ),
    "llama-3-8b": BlockConfig(
        dim=4096, num_heads=32, num_kv_heads=8, num_layers=32, ffn_dim=14336,
        **{**_LLAMA3, "max_position": 8192},
    ),
}  # fmt: skip
"""Preset name to config. Sources: Vaswani et al. 2017 (base model) and the models' published config.json."""


def preset(name: str) -> BlockConfig:
    """Look up a preset.

    Raises:
        ConfigError: unknown name; lists the known ones.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"preset {name!r}: unknown; {hint}known: {', '.join(PRESETS)}")
    return PRESETS[name]
