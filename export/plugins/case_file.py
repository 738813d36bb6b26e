"""Cases with their inputs and float64 outputs in a file, for the C++ harness that plays TensorRT.

So the harness knows no op: it hands the inputs to the plugin and compares what comes out. Little-endian; for
each case int64 op id, dtype id, rows, width, packed; the attributes, 4 bytes each; the inputs in the case's
dtype (packed: one [rows, inputs * width] tensor); the outputs as float64.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from tblock.contract import PLUGINS
from tblock.export.plugins.selfcheck import Case, field_sets, make_inputs, reference
from tblock.export.plugins.variants import DTYPES, OPS, row_of

_SHAPES = (
    *((19, width) for width in (1, 7, 64, 128, 576, 1000, 1536, 2048)),
    *((1, width) for width in (1, 576, 4097, 8192, 16388)),
)
"""Small enough for a stand-in driver that computes on the host; the wide ones are `selfcheck`'s."""


def plugin_cases() -> Iterator[Case]:
    """What a plugin must be able to do: every dtype, odd widths, every example of its attributes."""
    for row in PLUGINS:
        for dtype in DTYPES:
            for rows, width in _SHAPES:
                for fields in field_sets(row):
                    case = Case(op=row.name, dtype=dtype, rows=rows, width=width, fields=fields)
                    yield case
                if row.kind == "elementwise" and rows > 1:
                    yield Case(op=row.name, dtype=dtype, rows=rows, width=width, fields=fields, packed=True)


def write(path: Path, seed: int = 0) -> Path:
    """Write `plugin_cases`."""
    names = list(DTYPES)
    with path.open("wb") as file:
        for case in plugin_cases():
            sizes = (OPS.index(case.op), names.index(case.dtype), case.rows, case.width, case.packed)
            file.write(struct.pack("<5q", *sizes))
            for attribute, value in zip(row_of(case.op).attributes, case.fields, strict=True):
                file.write(struct.pack("<f" if attribute.kind == "float" else "<i", value))
            inputs = make_inputs(case, seed)
            for tensor in [torch.cat(inputs, -1)] if case.packed else inputs:
                file.write(_bytes(tensor))
            for tensor in reference(case, inputs):
                file.write(_bytes(tensor))
    return path


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
