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


def rope_fields(
    fields: Fields,
    *,
    head_dim: int,
    base: float = 10000.0,
    partial: float = 1.0,
    layer_type: str | None = None,
) -> dict[str, Any]:
    """rope_base, rope_dim and the scaling of one layer.

    Args:
        fields: the model's settings.
        head_dim: E.
        base: theta where the settings give none.
        partial: rotated share of E where the settings give none.
        layer_type: picks the object where `rope_parameters` has one for each layer type.

    Raises:
        ConfigError: a rope type the block does not have.
    """
    parameters = _parameters(fields, layer_type)
    name = "partial_rotary_factor"
    share = parameters.positive(name, fields.positive(name, partial, most=1), most=1)
    result: dict[str, Any] = {
        "rope_base": parameters.number("rope_theta", fields.number("rope_theta", base)),
        "rope_dim": int(head_dim * share),
    }
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind not in _TYPES:
        reason = "depends on the run-time length" if kind in _LENGTH_DEPENDENT else "unknown rope type"
        raise ConfigError(f"{parameters.where}: rope_type={kind!r}: {reason}; supported: {', '.join(_TYPES)}")
    result["rope_scaling"] = _TYPES[kind]
    if kind == "default":
        return result
    result["rope_factor"] = parameters.number("factor")
    if kind in ("llama3", "yarn"):
        old = parameters.integer("original_max_position_embeddings", None)
        old = old or fields.integer("original_max_position_embeddings", None)
        result["rope_original_max_position"] = old or fields.integer("max_position_embeddings")
    if kind == "llama3":
        result["rope_low_freq_factor"] = parameters.number("low_freq_factor")
        result["rope_high_freq_factor"] = parameters.number("high_freq_factor")
    if kind == "yarn":
        parameters.refuse("yarn", truncate=(True,))
        result["rope_beta_fast"] = parameters.number("beta_fast", 32.0)
        result["rope_beta_slow"] = parameters.number("beta_slow", 1.0)
        result["rope_attention_factor"] = _attention_factor(parameters, result["rope_factor"])
    return result


def _parameters(fields: Fields, layer_type: str | None) -> Fields:
    if "rope_parameters" not in fields:
        return fields.sub("rope_scaling")
    parameters = fields.sub("rope_parameters")
    if "rope_scaling" in fields and fields.values["rope_scaling"] != parameters.values:
        raise ConfigError(f"{fields.where}: rope_scaling stands beside rope_parameters; which one counts?")
    if layer_type is not None and isinstance(parameters.values.get(layer_type), dict):
        return parameters.sub(layer_type)
    return parameters


def _attention_factor(parameters: Fields, factor: float) -> float | None:
    given = parameters.number("attention_factor", None)
    over, under = parameters.number("mscale", None), parameters.number("mscale_all_dim", None)
    if given is not None or not (over and under):
        return given

    def gain(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    return gain(over) / gain(under)
