"""Capture: a Block or Stack becomes one ExportedProgram with symbolic B and S, composite ops kept whole.

Traces at example sizes of its own choosing, never at the user's: odd, above 1, different from each other and
from every size of the config, so that no size is specialised and no constant can be taken for one.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from tblock.block import ARGUMENTS
from tblock.config import BlockConfig
from tblock.errors import ExportError, reason
from tblock.manifest import TensorSpec
from tblock.ranges import Range
from tblock.rope_table import RopeTable
from tblock.weights import DTYPES


def capture(
    module: nn.Module, configs: Sequence[BlockConfig], inputs: Sequence[TensorSpec], ranges: dict[str, Range]
) -> ExportedProgram:
    """Export with named dynamic dimensions.

    Args:
        module: Block or Stack with its weights, without grad.
        configs: of its blocks.
        inputs: the graph inputs, in order; `x` first.
        ranges: letter to declared range.

    Returns:
        The program; positional inputs in the order given, one output `y`.

    Raises:
        ExportError: torch.export failed, or specialised a declared dimension.
    """
    sizes = example_sizes(configs, ranges)
    # A range of one size is still captured as dynamic: the artifact's limits are the manifest's business.
    dims = {
        letter: Dim(letter, min=min(r.min, 1), max=max(r.max, sizes[letter])) for letter, r in ranges.items()
    }
    arguments, shapes = {}, {}
    for spec in inputs:
        shape = [sizes[d] if isinstance(d, str) else d for d in spec.dims]
        arguments[ARGUMENTS[spec.name]] = _example(spec, shape)
        shapes[ARGUMENTS[spec.name]] = {i: dims[d] for i, d in enumerate(spec.dims) if isinstance(d, str)}
    try:
        program = torch.export.export(module, (), arguments, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise ExportError(f"capture: torch.export failed: {reason(error)}") from error
    return program


def trim_tables(
    module: nn.Module, configs: Sequence[BlockConfig], inputs: Sequence[TensorSpec], ranges: dict[str, Range]
) -> None:
    """Cut RoPE tables to the declared sequence; whole where positions are an input.

    Never shorter than what `capture` traces with: the end of a table would become a size of the graph.
    """
    if any(spec.name == "position_ids" for spec in inputs):
        return
    tokens = max(ranges["S"].max, example_sizes(configs, ranges)["S"])
    for part in module.modules():
        if isinstance(part, RopeTable):
            part.resize(tokens)


def example_sizes(configs: Sequence[BlockConfig], ranges: dict[str, Range]) -> dict[str, int]:
    """A size to trace with for each letter (tokens or sequences), within what RoPE tables allow."""
    taken = {value for c in configs for value in c.to_dict().values() if isinstance(value, int)}
    for c in configs:
        taken |= {c.q_dim, c.kv_dim, c.num_heads // (c.num_kv_heads or 1), (c.rope_dim or 0) // 2}
    taken |= {size for r in ranges.values() for size in (r.min, r.opt, r.max)}
    odd = _odd_numbers()
    return {letter: next(n for n in odd if n not in taken) for letter in ranges}


def _odd_numbers() -> Iterator[int]:
    yield from range(3, 1_000_000, 2)


def _example(spec: TensorSpec, shape: list[int]) -> torch.Tensor:
    if spec.dtype == "bool":
        return torch.ones(shape, dtype=torch.bool)
    if spec.dtype == "int64":
        return torch.arange(shape[1]).expand(shape).contiguous()
    return torch.zeros(shape, dtype=DTYPES[spec.dtype])
