"""Where an export's blocks and golden inputs come from: seeded weights, a module or a checkpoint."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from tblock.block import Block, Stack
from tblock.checkpoints import Checkpoint
from tblock.config import BlockConfig
from tblock.errors import ConfigError
from tblock.unchanged import require_unchanged
from tblock.weights import fill, random_block_weights, tied_parameters, to_array

SEED = 0
"""Of a preset's weights and of every golden input."""


class Source(Protocol):
    """What the exporter asks of a source."""

    configs: tuple[BlockConfig, ...]
    description: dict[str, Any]

    @property
    def bytes_read(self) -> int | None:
        """Tensor data read so far, where a checkpoint is read."""
        ...

    def module(self, dtype: torch.dtype) -> nn.Module:
        """Block (one layer) or Stack (several), filled with weights rounded to `dtype`."""
        ...

    def require_golden(self) -> None:
        """Refuse now, before any work, what `hidden_states` would miss later (ConfigError)."""
        ...

    def hidden_states(self, shapes: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Inputs [B, S, D] float32 such as the first block really sees, one for each (B, S)."""
        ...


class ConfigSource:
    """Blocks of one config with seeded weights; inputs like the embedding's output at init."""

    bytes_read = None

    def __init__(self, config: BlockConfig, *, layers: range, description: dict[str, Any]) -> None:
        self.configs = (config,) * len(layers)
        self.layers = layers
        self.description = description

    def module(self, dtype: torch.dtype) -> nn.Module:
        module = _empty(self.configs)
        for n, (prefix, config) in enumerate(_prefixes(self.configs)):
            weights = random_block_weights(config, SEED + self.layers[n])
            part = module if not prefix else module.layers[n]  # type: ignore[index]
            fill(part, weights, dtype=dtype, where="preset weights")  # type: ignore[arg-type]
        return module

    def require_golden(self) -> None:
        """Nothing is needed."""

    def hidden_states(self, shapes: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        return _random_states(self.configs[0], shapes)


class ModuleSource:
    """A Block or Stack of the caller's, with its weights."""

    bytes_read = None

    def __init__(self, given: Block | Stack, *, layer: int | None = None, layers: str | None = None) -> None:
        """Take the weights of all blocks, or of those that `layer` or `layers` name (see `parse_layers`).

        Raises:
            ConfigError: layers out of range, or a module that was changed beside its config and weights.
        """
        name, single = type(given).__name__, isinstance(given, Block)
        blocks: list[Any] = [given] if single else list(given.layers)  # type: ignore[arg-type]
        foreign = [type(block).__name__ for block in blocks if not isinstance(block, Block)]
        if foreign:
            raise ConfigError(f"{name}: layers holds a {foreign[0]}, wanted blocks only")
        configs = [block.config for block in blocks]
        require_unchanged(given, _empty(configs, stacked=not single), name=name)
        chosen = range(len(blocks))
        if layer is not None or layers is not None:
            chosen = parse_layers(layers, layer, len(blocks))
        blocks = blocks[chosen.start : chosen.stop]
        self.configs: tuple[BlockConfig, ...] = tuple(configs[chosen.start : chosen.stop])
        holder = nn.Module()
        holder.layers = nn.ModuleList(blocks)
        named = blocks[0] if len(blocks) == 1 else holder
        self.weights = {name: to_array(p) for name, p in named.named_parameters()}
        self.tied = tied_parameters(named)
        self.description: dict[str, Any] = {
            "kind": "module",
            "name": name,
            "layers": [chosen.start, chosen.stop],
        }
        if self.tied:
            self.description["tied"] = self.tied

    def module(self, dtype: torch.dtype) -> nn.Module:
        module = _empty(self.configs)
        fill(module, self.weights, dtype=dtype, where="module", tied=self.tied)
        return module

    def require_golden(self) -> None:
        """Nothing is needed."""

    def hidden_states(self, shapes: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        return _random_states(self.configs[0], shapes)


class CheckpointSource:
    """Layers of a trained model; inputs like those they really see.

    Golden inputs are a fixed token sequence's embedding run through the layers before.
    """

    def __init__(self, checkpoint: Checkpoint, *, layers: range) -> None:
        self.checkpoint = checkpoint
        self.layers = layers
        self.configs = tuple(checkpoint.config(n) for n in layers)
        self.description: dict[str, Any] = {
            "kind": "checkpoint",
            "name": checkpoint.path.name,
            "family": checkpoint.family,
            "layers": [layers.start, layers.stop],
        }

    @property
    def bytes_read(self) -> int:
        """As the protocol says; golden data of layer N also reads layers 0 .. N - 1."""
        return self.checkpoint.bytes_read

    def module(self, dtype: torch.dtype) -> nn.Module:
        module = _empty(self.configs)
        weights: dict[str, np.ndarray] = {}
        for (prefix, _), layer in zip(_prefixes(self.configs), self.layers, strict=True):
            weights |= {prefix + name: array for name, array in self.checkpoint.weights(layer).items()}
        fill(module, weights, dtype=dtype, where=f"checkpoint {self.checkpoint.path}")
        return module

    def verify_import(self, wanted: bool | None, progress: Callable[[str], None]) -> None:
        """Compare with the family's own implementation and note the outcome in the description.

        Raises as `tblock.checkpoints.probe.verify_import`.
        """
        found = None
        if wanted is not False:
            from tblock.checkpoints.probe import verify_import

            found = verify_import(self.checkpoint, self.layers, wanted, progress)
        self.description["import_verified"] = found

    def require_golden(self) -> None:
        """The embedding must be in the file."""
        self.checkpoint.require_embedding()

    def hidden_states(self, shapes: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """As the protocol says; the layers before run one at a time in float32.

        Families without tokens (images, sound) start from random states instead of embedded ones.
        """
        vocab = self.checkpoint.vocab_size
        if vocab is None:
            states = [torch.from_numpy(x) for x in _random_states(self.configs[0], shapes, std=1.0)]
        else:
            tokens = np.random.default_rng(SEED).integers(
                0, min(vocab, 1000), (max(b for b, _ in shapes), max(s for _, s in shapes))
            )
            states = [
                torch.from_numpy(
                    np.stack([self.checkpoint.embed(row[:seq]) for row in tokens[:batch]])
                ).float()
                for batch, seq in shapes
            ]
        for layer in range(self.layers.start):
            with torch.device("meta"):
                block = Block(self.checkpoint.config(layer))
            fill(block, self.checkpoint.weights(layer), dtype=torch.float32, where=f"layer {layer}")
            with torch.no_grad():
                states = [block(x) for x in states]
        return [x.numpy() for x in states]


def parse_layers(text: str | None, layer: int | None, total: int) -> range:
    """The layers `--layer N` or `--layers A:B` or `--layers all` name.

    Args:
        text: of --layers.
        layer: of --layer.
        total: layers of the model.

    Raises:
        ConfigError: both given, not such a text, or outside 0 .. total - 1.
    """
    if not isinstance(text, str | None) or not isinstance(layer, int | None):
        raise ConfigError(f"layer={layer!r}, layers={text!r}: wanted a number, or a text such as 0:2")
    if text is not None and layer is not None:
        raise ConfigError(f"--layer {layer} and --layers {text}: give one of them")
    if text == "all":
        return range(total)
    if text is not None:
        found = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
        if found is None or not int(found[1]) < int(found[2]) <= total:
            raise ConfigError(f"--layers {text!r}: wanted A:B with 0 <= A < B <= {total}, or all")
        return range(int(found[1]), int(found[2]))
    layer = 0 if layer is None else layer
    if not 0 <= layer < total:
        raise ConfigError(f"--layer {layer}: the model has layers 0 to {total - 1}")
    return range(layer, layer + 1)


def _empty(configs: Sequence[BlockConfig], *, stacked: bool = False) -> nn.Module:
    with torch.device("meta"):
        return Stack(configs) if stacked or len(configs) > 1 else Block(configs[0])


def _prefixes(configs: Sequence[BlockConfig]) -> list[tuple[str, BlockConfig]]:
    return [(f"layers.{n}." if len(configs) > 1 else "", c) for n, c in enumerate(configs)]


def _random_states(
    config: BlockConfig, shapes: Sequence[tuple[int, int]], std: float | None = None
) -> list[np.ndarray]:
    """Of the size of an embedding; of a norm's output where the attention reads x as it is.

    An unnormed x of 0.02 has scores near 0: every token would see the mean of all, whatever q, k and RoPE do.
    """
    if std is None:
        std = 1.0 if config.norm_position in ("post", "inner_post") else config.init_std
    generator, size = np.random.default_rng(SEED), np.float32(std)
    return [generator.standard_normal((*s, config.dim), np.float32) * size for s in shapes]
