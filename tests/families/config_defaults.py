"""What transformers' config classes have where a config.json leaves a setting out, as tblock keeps it.

    python -m tests.families.config_defaults

writes it to tblock/checkpoints/defaults.json; test_published_configs.py compares.
"""

import dataclasses
import json
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tblock.checkpoints.fields import Fields
from tblock.checkpoints.opening import FAMILIES
from tblock.checkpoints.published import DEFAULTS_FILE

_OWN_ROPE_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}


def settings_of(family: str) -> set[str]:
    """Every name the family's config class knows."""
    return {f.name for f in dataclasses.fields(CONFIG_MAPPING[family])}


def defaults_of(family: str) -> dict[str, Any]:
    """Setting to default, of those that the family's row reads and that have one."""
    every, row = _every_default(family), FAMILIES[family]
    fields = Fields(family, {}, every)
    row.config(fields, 0)
    fields.count(row.depth)
    if row.embedding is not None:
        row.embedding.scale(fields)
        row.embedding.position_offset(fields)
    return {name: value for name, value in sorted(every.items()) if name in fields.asked}


def _every_default(family: str) -> dict[str, Any]:
    cls = CONFIG_MAPPING[family]
    config = cls()
    defaults = {}
    for field in dataclasses.fields(cls):
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value is not None:
            defaults[field.name] = value
    rope = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in rope:
        defaults |= {
            "rope_theta": rope["full_attention"]["rope_theta"],
            "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
        }
    names = _OWN_ROPE_NAMES.get(family, {})
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            defaults[names.get(name, name)] = rope[name]
    kinds = getattr(config, "layer_types", None) or []
    if len(set(kinds)) > 1:
        defaults["sliding_window_pattern"] = kinds.index("full_attention") + 1
    return defaults


if __name__ == "__main__":
    about = f"defaults of the config classes of transformers {transformers.__version__}"
    families = {name: defaults_of(name) for name in FAMILIES}
    DEFAULTS_FILE.write_text(json.dumps({"about": about, "families": families}, indent=1) + "\n")
