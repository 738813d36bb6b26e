"""What a family row is: how its settings become a BlockConfig and its tensor names become the block's.

Owns the row types and the ways a stored tensor is taken apart; the rows themselves are in the families_*
files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tblock.checkpoints.fields import Fields, Known
from tblock.checkpoints.irrelevant import IRRELEVANT
from tblock.checkpoints.rope_layout import to_layout
from tblock.config import BlockConfig

ALL_BIASES = {"q_bias": True, "k_bias": True, "v_bias": True, "out_bias": True, "ffn_bias": True}
"""BlockConfig fields of a family whose every linear layer has a bias."""

Take = Callable[[np.ndarray, BlockConfig], Sequence[np.ndarray]]
"""One stored tensor (weight [out, in] or bias [out]) to the arrays of a rule's targets, in their order."""


def whole(array: np.ndarray, config: BlockConfig) -> Sequence[np.ndarray]:
    """As stored."""
    return [array]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One module of the family and the block's modules it fills; holds for its weight and its bias.

    Attributes:
        source: module path inside a layer; `{e}` stands for an expert's number.
        targets: module paths of the block; `{e}` without one in `source` means every expert, in order.
        take: how the stored tensor is taken apart.
    """

    source: str
    targets: tuple[str, ...]
    take: Take = whole


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """What stands before layer 0, as tensor names behind the family's prefix.

    Attributes:
        tokens: the token table.
        positions: the learned position table, if any.
        position_offset: row of position 0 in it, from the settings.
        token_types: the segment table, of which row 0 is added, if any.
        norm: module path of the LayerNorm over the sum, if any.
        scale: multiplies the token rows.
    """

    tokens: str
    positions: str | None = None
    position_offset: Callable[[Fields], int] = lambda fields: 0
    token_types: str | None = None
    norm: str | None = None
    scale: Callable[[Fields], float] = lambda fields: 1.0


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the family table.

    Attributes:
        name: as in `model_type` of config.json.
        prefixes: what may stand in front of every name, by the class the checkpoint was saved from.
        layers: paths of the layers behind the prefix, by the age of the checkpoint.
        config: the settings and a layer's number to BlockConfig fields.
        rules: the layer's modules.
        ignored: regular expressions of names inside a layer that are buffers, not weights.
        embedding: None where the family has no tokens or they are not supported.
        depth: settings key of the number of layers.
        known: settings that no layer depends on; every other one is read or refused.
        scope: what the names of the family's settings begin with.
        advice: what to do about a setting that is refused, for the message.
    """

    name: str
    prefixes: tuple[str, ...]
    layers: tuple[str, ...]
    config: Callable[[Fields, int], dict[str, Any]]
    rules: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()
    embedding: Embedding | None = None
    depth: str = "num_hidden_layers"
    known: Known = field(default_factory=lambda: IRRELEVANT)
    scope: str = ""
    advice: str = "remove it where it does not"


def rules(table: dict[str, str], take: Take = whole) -> tuple[Rule, ...]:
    """Rules from a source-to-target table."""
    return tuple(Rule(source=source, targets=(target,), take=take) for source, target in table.items())


def transposed(array: np.ndarray, config: BlockConfig) -> Sequence[np.ndarray]:
    """GPT-2's Conv1D keeps weights as [in, out]; biases stay."""
    return [np.ascontiguousarray(array.T)]


def qkv_rows(array: np.ndarray, config: BlockConfig) -> Sequence[np.ndarray]:
    """Rows q, k, v one after the other."""
    return np.split(array, [config.q_dim, config.q_dim + config.kv_dim])


def qkv_columns(array: np.ndarray, config: BlockConfig) -> Sequence[np.ndarray]:
    """Conv1D: columns q, k, v one after the other."""
    return [np.ascontiguousarray(part) for part in qkv_rows(array.T, config)]


def qkv_per_group(array: np.ndarray, config: BlockConfig) -> Sequence[np.ndarray]:
    """Rows by key/value head: its H/K query heads, then its k, then its v (GPT-NeoX with H/K = 1, Falcon)."""
    per_group = config.num_heads // config.num_kv_heads
    groups = array.reshape(config.num_kv_heads, per_group + 2, config.head_dim, *array.shape[1:])
    parts = groups[:, :per_group], groups[:, per_group], groups[:, per_group + 1]
    return [np.ascontiguousarray(part).reshape(-1, *array.shape[1:]) for part in parts]


def halves(array: np.ndarray, config: BlockConfig) -> Sequence[np.ndarray]:
    """Rows of the first target, then as many of the second."""
    return np.split(array, 2)


def each_expert(array: np.ndarray, config: BlockConfig) -> Sequence[np.ndarray]:
    """[N, out, in] to one matrix for each expert."""
    return list(array)


def from_interleaved(array: np.ndarray, config: BlockConfig) -> Sequence[np.ndarray]:
    """Rows of q or k whose rotation pairs neighbours (llama.cpp's `llama`), for the block's half-split."""
    return [to_layout(array, config, "half")]
