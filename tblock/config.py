"""BlockConfig: everything that defines one transformer block, as one flat frozen dataclass.

Owns what follows from what was given, and the JSON form. The fields are in `config_fields`, what may be said
in `config_checks`. Nothing about a backend is in it; imports no torch.
"""

import dataclasses
import difflib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tblock import counts
from tblock.config_checks import check_combinations, check_types, positive
from tblock.config_fields import BlockFields
from tblock.errors import ConfigError
from tblock.files import read_json

FFN_MULTIPLE = 64
"""Gated hidden widths are rounded down to a multiple of this (8/3 D; 64 keeps GEMM tiles full)."""


def _ffn_dim(c: BlockFields) -> int:
    return c.dim * 8 // 3 // FFN_MULTIPLE * FFN_MULTIPLE if c.gated else 4 * c.dim


def _attention_factor(c: BlockFields) -> float:
    return 0.1 * math.log(max(c.rope_factor, 1.0)) + 1.0 if c.rope_scaling == "yarn" else 1.0


_DERIVED: dict[str, Callable[[BlockFields], Any]] = {
    "num_kv_heads": lambda c: c.num_heads,
    "head_dim": lambda c: c.dim // c.num_heads,
    "norm_bias": lambda c: c.norm == "layernorm",
    "attn_scale": lambda c: 1.0 / math.sqrt(max(c.head_dim, 1)),
    "rope_dim": lambda c: c.head_dim if c.rope else 0,
    "rope_attention_factor": _attention_factor,
    "ffn_dim": _ffn_dim,
}
"""Field to what it is where nobody gives it; each may read the ones before it."""


@dataclass(frozen=True, kw_only=True)
class BlockConfig(BlockFields):
    """One transformer block: attention plus a position-wise FFN, each with a residual and a normalization.

    The fields are those of BlockFields. Fields left at None are filled in at construction, so a constructed
    config (and its JSON) is explicit, and two configs are equal where all their values are.
    """

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "dim", "num_heads", "num_layers", "max_position")
        if self.head_dim is None and self.dim % self.num_heads:
            raise ConfigError(f"num_heads={self.num_heads}: must divide dim={self.dim}, or give head_dim")
        for name, derive in _DERIVED.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, derive(self))
        check_combinations(self)

    def parameter_count(self, *, active: bool = False) -> int:
        """Weights of one block (scalars); `active`: of experts, only those one token meets."""
        return counts.parameter_count(self, active=active)

    def flop_count(self, *, batch: int, seq: int, past: int = 0) -> int:
        """FLOPs of one forward pass of one block at B, S, P (tokens), a multiply-add counted as two."""
        return counts.flop_count(self, batch=batch, seq=seq, past=past)

    def replace(self, **changes: Any) -> "BlockConfig":
        """A copy with some fields changed and the whole of it checked again.

        A field whose value is what follows from the others (`attn_scale` of `head_dim`, say) follows from the
        changed ones in the copy; give it among the changes to keep it.

        Raises:
            ConfigError: a field is unknown or the combination makes no sense.
        """
        given = {
            name: value
            for name, value in self.to_dict().items()
            if name not in _DERIVED or value != _DERIVED[name](self)
        }
        return BlockConfig.from_dict({**given, **changes})

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any], where: str = "config") -> "BlockConfig":
        """Build from a mapping; missing fields take their defaults.

        Args:
            fields: field name to value.
            where: named in front of the message.

        Raises:
            ConfigError: not a mapping, an unknown or missing field, or a bad value.
        """
        if not isinstance(fields, dict):
            raise ConfigError(
                f"{where}: got {type(fields).__name__}, wanted a JSON object of BlockConfig fields"
            )
        known = [f.name for f in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise ConfigError(f"{where}: unknown field {name!r}; {hint}")
        for name in ("dim", "num_heads"):
            if name not in fields:
                raise ConfigError(f"{where}: field {name!r} is missing")
        return cls(**fields)

    def to_json(self) -> str:
        """The JSON form, one field a line."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, path: str | Path) -> "BlockConfig":
        """Read a config file.

        Raises:
            ConfigError: the file is missing, is not JSON, or its fields make no sense.
        """
        try:
            fields = read_json(Path(path), pipe=True)
        except OSError as error:
            raise ConfigError(
                f"config {path}: {error.strerror or error}; give a JSON file of BlockConfig fields"
            ) from None
        except ValueError as error:
            raise ConfigError(f"config {path}: not JSON ({error})") from None
        return cls.from_dict(fields, where=f"config {path}")
