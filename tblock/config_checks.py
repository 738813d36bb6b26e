"""What a BlockConfig may say: each field's kind, and which fields go together.

Called by the constructor, before and after it fills in the fields left out. Imports no torch.
"""

import dataclasses
import math
from typing import get_args

from tblock.choices import (
    FeedForward,
    Norm,
    NormPosition,
    Parallel,
    QkNorm,
    RopeLayout,
    RopeScaling,
    Router,
)
from tblock.config_fields import BlockFields
from tblock.errors import ConfigError

_CHOICES = {
    "norm": Norm,
    "norm_position": NormPosition,
    "parallel": Parallel,
    "qk_norm": QkNorm,
    "rope_layout": RopeLayout,
    "rope_scaling": RopeScaling,
    "ffn": FeedForward,
    "router": Router,
}
_MOST_INT, _MOST_FLOAT = 2**31 - 1, 1e30
"""No tensor axis is counted past an int32, and float32 holds no more than 3.4e38."""
_MOST = {"num_layers": 10_000, "num_experts": 10_000}
"""Modules are built one by one; the largest published models have 126 layers and 384 experts."""
_LLAMA3 = ("rope_low_freq_factor", "rope_high_freq_factor")
_YARN = ("rope_beta_fast", "rope_beta_slow")


def check_types(c: BlockFields) -> None:
    """Refuse a field of the wrong kind, or a word that is not among its choices (ConfigError)."""
    for field in dataclasses.fields(c):
        value, name = getattr(c, field.name), field.name
        if name in _CHOICES:
            choices = get_args(_CHOICES[name])
            if value not in choices:
                raise ConfigError(f"{name}={value!r}: must be one of {', '.join(choices)}")
            continue
        kinds = get_args(field.type) or (field.type,)
        if value is None and (type(None) in kinds or field.default is None):
            continue
        if bool in kinds:
            good = isinstance(value, bool)
        elif int in kinds:
            good = isinstance(value, int) and not isinstance(value, bool)
        else:
            # Not isfinite: an int may be too large to be a float.
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
        if not good:
            wanted = "a finite float" if float in kinds else "true or false" if bool in kinds else "an int"
            raise ConfigError(f"{name}={value!r}: must be {wanted}")
        most = _MOST.get(name, _MOST_INT if int in kinds else _MOST_FLOAT)
        if abs(value) > most:
            raise ConfigError(
                f"{name}={str(value)[:20]}{'...' * (len(str(value)) > 20)}: must be at most {most:g}"
            )


def positive(c: BlockFields, *names: str) -> None:
    """Refuse fields that are 0 or below (ConfigError)."""
    for name in names:
        if getattr(c, name) <= 0:
            raise ConfigError(f"{name}={getattr(c, name)}: must be above 0")


def _unused(c: BlockFields, needs: str, *names: str) -> None:
    """Refuse fields that were set but that nothing would read."""
    defaults = {f.name: f.default for f in dataclasses.fields(c)}
    for name in names:
        if getattr(c, name) != defaults[name]:
            raise ConfigError(f"{name}={getattr(c, name)!r}: needs {needs}")


def _check_attention(c: BlockFields) -> None:
    positive(c, "num_kv_heads", "head_dim", "attn_scale")
    if c.num_heads % c.num_kv_heads:
        raise ConfigError(f"num_kv_heads={c.num_kv_heads}: must divide num_heads={c.num_heads}")
    if c.sliding_window is not None:
        positive(c, "sliding_window")
        if not c.causal:
            raise ConfigError(f"sliding_window={c.sliding_window}: needs causal=True")
    if c.attn_soft_cap is not None:
        positive(c, "attn_soft_cap")


def _check_norm(c: BlockFields) -> None:
    positive(c, "norm_eps", "residual_multiplier")
    if c.norm == "rmsnorm" and c.norm_bias:
        raise ConfigError("norm_bias=True: RMSNorm has no bias; use norm='layernorm'")
    if c.norm == "layernorm" and c.norm_weight_offset:
        raise ConfigError(f"norm_weight_offset={c.norm_weight_offset}: only RMSNorm has one")


def _check_rope(c: BlockFields) -> None:
    if not c.rope:
        if c.rope_dim:
            raise ConfigError(f"rope_dim={c.rope_dim}: needs rope=True")
        _unused(c, "rope=True", "rope_base", "rope_layout", "rope_scaling", "rope_factor", *_LLAMA3, *_YARN)
        return
    if c.rope_scaling not in ("llama3", "yarn"):
        _unused(c, "rope_scaling='llama3' or 'yarn'", "rope_original_max_position")
    if c.rope_scaling != "llama3":
        _unused(c, "rope_scaling='llama3'", *_LLAMA3)
    if c.rope_scaling != "yarn":
        _unused(c, "rope_scaling='yarn'", *_YARN)
        if c.rope_attention_factor != 1.0:
            raise ConfigError(f"rope_attention_factor={c.rope_attention_factor}: needs rope_scaling='yarn'")
    elif c.rope_base <= 1.0:
        raise ConfigError(f"rope_base={c.rope_base}: must be above 1 for rope_scaling='yarn'")
    if c.rope_dim == c.head_dim and c.head_dim % 2:
        raise ConfigError(
            f"head_dim={c.head_dim}: RoPE rotates pairs; make it even, or give an even rope_dim"
        )
    if c.rope_dim % 2 or not 0 < c.rope_dim <= c.head_dim:
        raise ConfigError(f"rope_dim={c.rope_dim}: must be even, above 0 and at most head_dim={c.head_dim}")
    positive(c, "rope_base", "rope_attention_factor")
    if c.rope_scaling == "none":
        if c.rope_factor != 1.0:
            raise ConfigError(f"rope_factor={c.rope_factor}: needs rope_scaling")
        return
    if c.rope_factor < 1.0:
        raise ConfigError(f"rope_factor={c.rope_factor}: must be at least 1")
    if c.rope_scaling in ("llama3", "yarn"):
        if c.rope_original_max_position is None:
            raise ConfigError(f"rope_scaling={c.rope_scaling!r}: needs rope_original_max_position")
        positive(c, "rope_original_max_position")
    if c.rope_scaling == "llama3" and not 0 < c.rope_low_freq_factor < c.rope_high_freq_factor:
        raise ConfigError(
            f"rope_low_freq_factor={c.rope_low_freq_factor}: must be above 0 and below "
            f"rope_high_freq_factor={c.rope_high_freq_factor}"
        )
    if c.rope_scaling == "yarn" and not 0 < c.rope_beta_slow < c.rope_beta_fast:
        raise ConfigError(
            f"rope_beta_slow={c.rope_beta_slow}: must be above 0 and below rope_beta_fast={c.rope_beta_fast}"
        )


def _check_ffn(c: BlockFields) -> None:
    if c.ffn_dim == 0 and c.gated:
        raise ConfigError(f"dim={c.dim}: 8/3 dim rounds down to 0; give ffn_dim")
    positive(c, "ffn_dim", "init_std")
    for name in ("num_experts", "experts_per_token", "shared_ffn_dim"):
        if getattr(c, name) < 0:
            raise ConfigError(f"{name}={getattr(c, name)}: must be 0 or more")
    if c.num_experts == 0:
        _unused(c, "num_experts", "router", "router_normalized")
        for name in ("experts_per_token", "shared_ffn_dim"):
            if getattr(c, name):
                raise ConfigError(f"{name}={getattr(c, name)}: needs num_experts")
    elif not 0 < c.experts_per_token <= c.num_experts:
        raise ConfigError(
            f"experts_per_token={c.experts_per_token}: must be 1 to num_experts={c.num_experts}"
        )
    elif c.ffn_bias:
        raise ConfigError("ffn_bias=True: experts have no biases in any supported family")


def _check_parallel(c: BlockFields) -> None:
    if c.parallel != "none" and c.norm_position != "pre":
        raise ConfigError(f"parallel={c.parallel!r}: needs norm_position='pre', got {c.norm_position!r}")


def check_combinations(c: BlockFields) -> None:
    """Refuse fields that contradict each other or that nothing would read; all of them are filled in.

    Raises:
        ConfigError: names the field, its value and what it needs.
    """
    for check in (_check_attention, _check_norm, _check_rope, _check_ffn, _check_parallel):
        check(c)
