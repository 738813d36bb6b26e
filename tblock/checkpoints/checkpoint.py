"""A checkpoint of a known family: per-layer configs, weights under the block's names, and the embedding.

Owns strictness: every parameter of a layer is filled exactly once and every tensor of the layer is used.
numpy only.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from tblock.checkpoints.family import Family, Rule
from tblock.checkpoints.fields import Fields
from tblock.checkpoints.shapes import parameter_shapes
from tblock.checkpoints.source import TensorSource, require_finite
from tblock.config import BlockConfig
from tblock.errors import ConfigError

_OLD_KINDS = {"gamma": "weight", "beta": "bias"}
"""How the first BERT checkpoints (bert-base-uncased among them) call LayerNorm's parameters."""

_WITHOUT_EMBEDDING = "golden data starts at the embedding: give the whole checkpoint, or --no-golden"


class Checkpoint:
    """One model on disk, read layer by layer.

    Attributes:
        path: what was opened.
        num_layers: layers L of the model.
        fields: the model's settings.
        source: its tensors.
        prefix: what stands in front of every name.
        layer_root: prefix and path of the layers, up to the layer's number.
    """

    def __init__(self, *, family: Family, fields: Fields, source: TensorSource) -> None:
        """Bind a family's row to settings and tensors.

        Raises:
            ConfigError: no tensor stands where the family's layers do.
        """
        self.path: Path = source.path
        self.num_layers: int = fields.count(family.depth)
        self._family, self.fields, self.source = family, fields, source
        roots = [(prefix, f"{prefix}{path}.") for prefix in family.prefixes for path in family.layers]
        found = [(p, root) for p, root in roots if any(name.startswith(root) for name in source.names())]
        if not found:
            places = " or ".join(root for _, root in roots)
            raise ConfigError(f"{self.path}: no tensor under {places}, wanted the layers of {family.name}")
        self.prefix, self.layer_root = found[0]
        surplus = sorted(n for n in self._by_layer if n >= self.num_layers)
        if surplus:
            says = f"{fields.where} says {family.depth}={self.num_layers}"
            raise ConfigError(f"{self.path}: the file has layer {surplus[0]}, {says}")

    @property
    def family(self) -> str:
        """The family's name."""
        return self._family.name

    @property
    def vocab_size(self) -> int | None:
        """Rows of the token table; None where the family has no tokens (images, sound)."""
        spec = self._family.embedding
        return None if spec is None else self.source.shape(self._embedding_tensor(spec.tokens))[0]

    @property
    def bytes_read(self) -> int:
        """Bytes of tensor data touched so far, as stored."""
        return self.source.bytes_read

    def config(self, layer: int) -> BlockConfig:
        """The block's config; layers may differ in window, RoPE base or FFN.

        Args:
            layer: 0 .. num_layers - 1.

        Raises:
            ConfigError: out of range, or the settings ask for something the block does not have.
        """
        self._check_layer(layer)
        family, settings = self._family, self.fields.unread()
        fields = {"num_layers": settings.count(family.depth), **family.config(settings, layer)}
        try:
            config = BlockConfig(**fields)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: layer {layer}: {error}") from None
        settings.refuse(family.name, is_causal=(config.causal,))
        settings.refuse_unread(family.name, family.known, family.scope, family.advice)
        return config

    def weights(self, layer: int) -> dict[str, np.ndarray]:
        """The layer's weights under the block's state-dict names, in the stored dtype (quantised: float32).

        Args:
            layer: 0 .. num_layers - 1.

        Raises:
            ConfigError: a parameter without a tensor, a tensor without a use, two tensors for one parameter,
                a shape that disagrees with the settings, NaN or Inf, or an unreadable dtype.
        """
        config = self.config(layer)
        wanted = parameter_shapes(config)
        plan = self._plan(layer, config, wanted)
        weights: dict[str, np.ndarray] = {}
        for name, (rule, targets) in plan.items():
            array = self._finite(name, self.source.read(name))
            try:
                parts = rule.take(array, config)
                good = [p.shape for p in parts] == [wanted[t] for t in targets]
            except ValueError:
                good = False
            if not good:
                shapes = ", ".join(f"{t} {list(wanted[t])}" for t in targets)
                raise ConfigError(
                    f"{self.path}: tensor {name} has shape {list(array.shape)}, the config wants {shapes}"
                )
            weights |= zip(targets, parts, strict=True)
        return weights

    def tensor_names(self, layer: int) -> list[str]:
        """The layer's tensors as the file names them, buffers left out."""
        self._check_layer(layer)
        buffers = self._family.ignored
        names = [n for n in self._by_layer.get(layer, []) if not any(re.fullmatch(p, n) for p in buffers)]
        return [f"{self.layer_root}{layer}.{n}" for n in names]

    def require_embedding(self) -> None:
        """Check that what `embed` needs is there and as wide as the block; no data is read.

        Raises:
            ConfigError: a tensor is missing or has another shape.
        """
        spec = self._family.embedding
        if spec is None:
            return
        for name in (spec.tokens, spec.positions, spec.token_types):
            if name is not None:
                self._embedding_tensor(name)
        if spec.norm is not None:
            self._embedding_norm(spec.norm)

    def embed(self, token_ids: Sequence[int]) -> np.ndarray:
        """What layer 0 sees: token rows plus what the family adds (scale, positions from 0, embedding norm).

        Args:
            token_ids: [S] ints.

        Returns:
            [S, D] float32.

        Raises:
            ConfigError: the family has no tokens, an id or position is out of range, or a tensor is missing,
                has another shape or holds NaN or Inf.
        """
        spec = self._family.embedding
        if spec is None:
            raise ConfigError(f"{self.path}: family {self.family} has no token embedding; give hidden states")
        ids = [int(t) for t in token_ids]
        x_SD = self._rows(spec.tokens, ids) * np.float32(spec.scale(self.fields))
        if spec.positions is not None:
            offset = spec.position_offset(self.fields)
            x_SD = x_SD + self._rows(spec.positions, [i + offset for i in range(len(ids))])
        if spec.token_types is not None:
            x_SD = x_SD + self._rows(spec.token_types, [0])
        return x_SD if spec.norm is None else self._normalized(x_SD, spec.norm)

    def _normalized(self, x_SD: np.ndarray, norm: str) -> np.ndarray:
        weight, bias = (self._finite(name, self.source.read(name)) for name in self._embedding_norm(norm))
        eps = self.config(0).norm_eps
        wide = x_SD.astype(np.float64)
        centred = wide - wide.mean(-1, keepdims=True)
        y = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps)
        return (y * weight + bias).astype(np.float32)

    def _rows(self, name: str, rows: list[int]) -> np.ndarray:
        name = self._embedding_tensor(name)
        count = self.source.shape(name)[0]
        for row in rows:
            if not 0 <= row < count:
                raise ConfigError(
                    f"{self.path}: row {row} of {name} is out of range, wanted 0 to {count - 1}"
                )
        return self._finite(name, self.source.read_rows(name, rows)).astype(np.float32)

    def _finite(self, name: str, array: np.ndarray) -> np.ndarray:
        require_finite(array, f"{self.path}: tensor {name}")
        return array

    def _embedding_norm(self, norm: str) -> list[str]:
        """Names of its weight and bias."""
        return [
            self._embedding_tensor(*(f"{norm}.{kind}" for kind in kinds), rank=1)
            for kinds in (("weight", "gamma"), ("bias", "beta"))
        ]

    def _embedding_tensor(self, *spellings: str, rank: int = 2) -> str:
        """The first of these names that the file has, checked to be [rows, D] or, of rank 1, [D]."""
        names = [self.prefix + name for name in spellings]
        name = next((name for name in names if name in self.source.names()), None)
        if name is None:
            raise ConfigError(f"{self.path}: tensor {names[0]} is missing; {_WITHOUT_EMBEDDING}")
        shape, dim = self.source.shape(name), self.config(0).dim
        if len(shape) != rank or shape[-1] != dim:
            wanted = f"[rows, {dim}]" if rank == 2 else f"[{dim}]"
            got = f"tensor {name} has shape {list(shape)}, wanted {wanted}"
            raise ConfigError(f"{self.path}: {got}; {_WITHOUT_EMBEDDING}")
        return name

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.num_layers:
            raise ConfigError(
                f"{self.path}: layer {layer} is out of range, wanted 0 to {self.num_layers - 1}"
            )

    @cached_property
    def _by_layer(self) -> dict[int, list[str]]:
        pattern = re.compile(re.escape(self.layer_root) + r"(\d+)\.(.+)")
        layers: dict[int, list[str]] = {}
        for name in self.source.names():
            if match := pattern.fullmatch(name):
                layers.setdefault(int(match[1]), []).append(match[2])
        return layers

    def _plan(
        self, layer: int, config: BlockConfig, wanted: dict[str, tuple[int, ...]]
    ) -> dict[str, tuple[Rule, list[str]]]:
        """Which tensor fills which parameters, before any data is read."""
        plan: dict[str, tuple[Rule, list[str]]] = {}
        unused: list[str] = []
        filled: dict[str, str] = {}
        for name in self.tensor_names(layer):
            rule, targets = self._match(name.removeprefix(f"{self.layer_root}{layer}."), config)
            if rule is None or not set(targets) <= wanted.keys():
                unused.append(name)
                continue
            for target in targets:
                if target in filled:
                    raise ConfigError(f"{self.path}: both {filled[target]} and {name} fill {target}")
                filled[target] = name
            plan[name] = rule, targets
        missing = sorted(wanted.keys() - filled.keys())
        if missing or unused:
            missing = [f"{m} (from {', '.join(self._sources(m, layer)) or 'nothing'})" for m in missing]
            sides = [
                f"{side}: {_some(names)}"
                for side, names in (("missing", missing), ("unused", unused))
                if names
            ]
            raise ConfigError(f"{self.path}: layer {layer} does not fit {self.family}; {'; '.join(sides)}")
        return plan

    def _match(self, name: str, config: BlockConfig) -> tuple[Rule | None, list[str]]:
        module, _, kind = name.rpartition(".")
        kind = _OLD_KINDS.get(kind, kind)
        for rule in self._family.rules:
            match = re.fullmatch(re.escape(rule.source).replace(r"\{e\}", r"(\d+)"), module)
            if match is None:
                continue
            experts = match.groups() or range(config.num_experts)
            targets = [
                f"{t.format(e=e)}.{kind}" for t in rule.targets for e in (experts if "{e}" in t else [""])
            ]
            return rule, targets
        return None, []

    def _sources(self, parameter: str, layer: int) -> list[str]:
        """The names, in the file's spelling, under which a parameter would have been found."""
        module, _, kind = parameter.rpartition(".")
        found = []
        for rule in self._family.rules:
            for target in rule.targets:
                match = re.fullmatch(re.escape(target).replace(r"\{e\}", r"(\d+)"), module)
                if match:
                    source = rule.source.format(e=match[1]) if match.groups() else rule.source
                    found.append(f"{self.layer_root}{layer}.{source}.{kind}")
        return found


def _some(names: list[str]) -> str:
    """At most eight of them, so that a layer of experts does not fill the screen."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
