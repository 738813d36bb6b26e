"""Golden data: the block run in float64 (streamed, one matrix at a time) and in the artifact's dtype."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from tblock.block import ARGUMENTS
from tblock.config import BlockConfig
from tblock.errors import ExportError
from tblock.export.block_source import Source
from tblock.golden import GoldenCase
from tblock.manifest import TensorSpec
from tblock.ranges import Range
from tblock.weights import DTYPES, to_array, to_tensor

SHAPES = ((1, 1), (2, 7), (1, 33), (3, 16))
"""(B, S) of the golden cases before they are moved into the declared ranges: decode, odd, long, batched."""


LONGEST = 512
"""Tokens of the longest golden case; the float64 reference of a longer one can take minutes."""


def golden_shapes(ranges: dict[str, Range], configs: Sequence[BlockConfig]) -> list[tuple[int, int]]:
    """The (B, S) of the cases for declared ranges, without repeats.

    Besides SHAPES: the declared optimum, and one token more than each sliding window needs to matter.
    """

    def inside(size: int, letter: str) -> int:
        return min(max(size, ranges[letter].min), ranges[letter].max)

    long = [ranges["S"].opt, *(c.sliding_window + 2 for c in configs if c.sliding_window)]
    shapes = [*SHAPES, *((1, min(size, LONGEST)) for size in long)]
    return list(dict.fromkeys((inside(b, "B"), inside(s, "S")) for b, s in shapes))


def golden_notes(ranges: dict[str, Range], configs: Sequence[BlockConfig]) -> list[str]:
    """What the cases judge and what they do not reach, one line each, for the manifest."""
    longest, declared = max(s for _, s in golden_shapes(ranges, configs)), ranges["S"].max
    notes = [f"golden data judge sequences of up to {longest} of the {declared} tokens declared"]
    for window in sorted({c.sliding_window for c in configs if c.sliding_window}):
        if longest <= window < declared:
            notes.append(
                f"golden data end before the sliding window of {window} tokens drops any: not judged"
            )
    return notes


def make_golden(
    source: Source,
    module: nn.Module,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    ranges: dict[str, Range],
    dtype: str,
) -> list[GoldenCase]:
    """Run the block on every case, in its own dtype and in float64.

    Args:
        source: gives the hidden states.
        module: Block or Stack in `dtype`.
        inputs, outputs: of the graph, in order.
        ranges: letter to declared range.
        dtype: of the artifact.

    Raises:
        ExportError: an input or eager's output is not finite in `dtype` (the block overflows it).
    """
    names = [spec.name for spec in inputs]
    cases = []
    for states in source.hidden_states(golden_shapes(ranges, source.configs)):
        arrays = {"x": to_array(torch.from_numpy(states).to(DTYPES[dtype]))}
        batch, seq = states.shape[:2]
        if "padding_mask" in names:
            arrays["padding_mask"] = padding_mask(batch, seq)
        if "position_ids" in names:
            live = arrays.get("padding_mask", np.ones((batch, seq), bool))
            arrays["position_ids"] = np.maximum(np.cumsum(live, axis=1) - 1, 0).astype(np.int64)
        cases.append(_case(module, arrays, [spec.name for spec in outputs], dtype))
    return cases


def _case(module: nn.Module, arrays: dict[str, np.ndarray], outputs: Sequence[str], dtype: str) -> GoldenCase:
    given = {name: to_tensor(array) for name, array in arrays.items()}
    eager = _run(module, given, outputs)
    for side, tensors in (("input", given), ("output", eager)):
        for name, tensor in tensors.items():
            _require_finite(f"{side} {name}", tensor, dtype)
    wide = {name: t.double() if t.is_floating_point() else t for name, t in given.items()}
    reference = _run(module, wide, outputs)
    return GoldenCase(
        arrays,
        {name: to_array(t) for name, t in reference.items()},
        {name: to_array(t) for name, t in eager.items()},
    )


def _run(
    module: nn.Module, given: dict[str, torch.Tensor], outputs: Sequence[str]
) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        result = module(**{ARGUMENTS[name]: tensor for name, tensor in given.items()})
    values = result if isinstance(result, tuple) else (result,)
    return dict(zip(outputs, values, strict=True))


def padding_mask(batch: int, seq: int) -> np.ndarray:
    """Which tokens are real, [B, S] bool.

    The first row is padded on the left by a quarter, the last of several on the right by a third.
    """
    mask = np.ones((batch, seq), bool)
    mask[0, : seq // 4] = False
    if batch > 1:
        mask[-1, seq - seq // 3 :] = False
    return mask


def _require_finite(what: str, tensor: torch.Tensor, dtype: str) -> None:
    bad = (~torch.isfinite(tensor)).any(-1).nonzero()
    if len(bad):
        row, token = bad[0].tolist()[:2]
        raise ExportError(
            f"{dtype} overflows in this block: {what} of sequence {row}, token {token} is not finite in "
            f"eager; export in bfloat16 or float32"
        )
