"""RoPE settings of config.json, old and new spelling, as BlockConfig fields.

Old: `rope_theta`, `rope_scaling` {type or rope_type, factor, ...}. New (transformers 5): `rope_parameters`,
either one object or one for each layer type.
"""

import math
from typing import Any

from tblock.checkpoints.fields import Fields
from tblock.errors import ConfigError

_TYPES = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
_LENGTH_DEPENDENT = ("dynamic", "longrope", "su")
"""Their frequencies follow the run-time length, which no exported graph can."""


def rope_fields(fields: Fields, *, head_dim: int, parameters: Fields | None = None) -> dict[str, Any]:
    """rope_base, rope_dim and the scaling of one layer.

    Args:
        fields: the model's settings.
        head_dim: E.
        parameters: the layer's RoPE settings, with defaults; None: those of `rope_parameters`.

    Raises:
        ConfigError: a rope type the block does not have.
    """
    parameters = rope_parameters(fields) if parameters is None else parameters
    if "partial_rotary_factor" not in parameters.defaults:
        parameters.refuse("this family's RoPE", partial_rotary_factor=(1.0,))
    result: dict[str, Any] = {
        "rope_base": parameters.number("rope_theta"),
        "rope_dim": int(head_dim * parameters.positive("partial_rotary_factor", 1.0, most=1)),
    }
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind not in _TYPES:
        reason = "depends on the run-time length" if kind in _LENGTH_DEPENDENT else "unknown rope type"
        raise ConfigError(f"{parameters.where}: rope_type={kind!r}: {reason}; supported: {', '.join(_TYPES)}")
    result["rope_scaling"] = _TYPES[kind]
    # Where it stands beside a scaling that does not use it, it changes nothing.
    name = "original_max_position_embeddings"
    old = parameters.integer(name, None) or fields.integer(name, None)
    if kind == "default":
        return result
    result["rope_factor"] = parameters.number("factor")
    if kind in ("llama3", "yarn"):
        result["rope_original_max_position"] = old or fields.integer("max_position_embeddings")
    if kind == "llama3":
        result["rope_low_freq_factor"] = parameters.number("low_freq_factor")
        result["rope_high_freq_factor"] = parameters.number("high_freq_factor")
    if kind == "yarn":
        parameters.refuse("yarn", truncate=(True,), finetuned=(True, False))
        result["rope_beta_fast"] = parameters.number("beta_fast", 32.0)
        result["rope_beta_slow"] = parameters.number("beta_slow", 1.0)
        result["rope_attention_factor"] = _attention_factor(parameters, result["rope_factor"])
    return result


def rope_parameters(
    fields: Fields, *, theta: str = "rope_theta", share: str = "partial_rotary_factor"
) -> Fields:
    """The object with the RoPE settings of all layers; what it leaves out stands beside it.

    Args:
        fields: the model's settings.
        theta, share: names beside it; a share counts where the family's config class has a default for it.

    Raises:
        ConfigError: an old and a new object that differ.
    """
    defaults = {"rope_theta": fields.number(theta)}
    if share in fields.defaults:
        defaults["partial_rotary_factor"] = fields.positive(share, most=1)
    if "rope_parameters" not in fields:
        return fields.sub("rope_scaling", defaults)
    parameters = fields.sub("rope_parameters", defaults)
    if "rope_scaling" in fields and fields.values["rope_scaling"] != parameters.values:
        raise ConfigError(f"{fields.where}: rope_scaling stands beside rope_parameters; which one counts?")
    return parameters


def _attention_factor(parameters: Fields, factor: float) -> float | None:
    given = parameters.number("attention_factor", None)
    over, under = parameters.number("mscale", None), parameters.number("mscale_all_dim", None)
    if given is not None or not (over and under):
        return given

    def gain(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    return gain(over) / gain(under)
