"""Compares the kernels with float64 over one table of cases: by Triton's interpreter or JIT, or the library.

Outputs start as NaN and every input is surrounded by NaN, so an element left out and a load from outside
show; a store outside an output shows in the marks around it. As a program it runs the interpreter, which must
be chosen before triton is imported: `TRITON_INTERPRET=1 python -m tblock.export.plugins.selfcheck`, one JSON
line per case.
"""

import argparse
import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy
import torch
from torch import Tensor

import tblock.ops  # noqa: F401 (registers torch.ops.tblock, the reference)
from tblock.contract import PLUGINS, OpRow
from tblock.export.plugins import launcher
from tblock.export.plugins.tiles import MAX_WIDTH
from tblock.export.plugins.variants import DTYPES, row_of

Launch = Callable[[str, list[Tensor], tuple[float, ...]], None]
"""(op, inputs then outputs, values of the row's attributes): writes the outputs."""

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

BUDGET = {
    # In the interpreter: 20 seeds over CASES gave at most 4.6, 1.01 and 1.99 units.
    "interpreter": {"float32": 8.0, "float16": 1.1, "bfloat16": 2.1},
    # The interpreter truncates float32 to bfloat16 (2 units); compiled code rounds (1 unit). float32 leaves
    # room for the approximate exp2, division and root of the GPU. Not yet measured on one.
    "gpu": {"float32": 32.0, "float16": 1.1, "bfloat16": 1.1},
}
"""Most allowed error by place and dtype, in unit roundoffs of the dtype (see `error_units`)."""

WIDTHS = (1, 7, 576, 1000, 4096, 14336, MAX_WIDTH)
_GUARD = 65536 + 64  # elements around every tensor: more than the widest tile
_MARK = 7.0  # around outputs: NaN would hide a stored NaN


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of one kernel.

    Attributes:
        op, dtype: of OPS and DTYPES.
        rows, width: of the call.
        fields: values of the row's attributes.
        packed: the inputs are the parts of one tensor; elementwise only.
        shifted: whether tensors start one element past a 16-byte boundary.
    """

    op: str
    dtype: str
    rows: int
    width: int
    fields: tuple[float, ...]
    packed: bool = False
    shifted: bool = False

    @property
    def id(self) -> str:
        """Readable and unique."""
        marks = [
            f"{attribute.name}={value:g}"
            for attribute, value in zip(row_of(self.op).attributes, self.fields, strict=True)
            if len(attribute.examples) > 1
        ]
        marks += ["packed"] * self.packed + ["shifted"] * self.shifted
        return "-".join([self.op, DTYPES[self.dtype][0], f"{self.rows}x{self.width}", *marks])


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a case: error in unit roundoffs, and how many elements were wrong in kind."""

    id: str
    dtype: str
    units: float
    missing: int
    outside: int

    def passed(self, place: str) -> bool:
        """Whether the result is within the budget of `place`, a key of BUDGET."""
        return self.units <= BUDGET[place][self.dtype] and not self.missing and not self.outside


def field_sets(row: OpRow) -> list[tuple[float, ...]]:
    """Values of a row's attributes to go through: each example at least once."""
    count = max((len(a.examples) for a in row.attributes), default=1)
    return [tuple(a.examples[i % len(a.examples)] for a in row.attributes) for i in range(count)]


def _cases(row: OpRow) -> Iterator[Case]:
    first, *others = field_sets(row)
    for dtype in DTYPES:
        for width in WIDTHS:
            case = Case(op=row.name, dtype=dtype, width=width, rows=19 if width <= 576 else 5, fields=first)
            yield case
            for fields in others:
                yield replace(case, fields=fields)
            if row.kind == "elementwise":
                yield replace(case, packed=True)
        yield Case(op=row.name, dtype=dtype, rows=5, width=4096, fields=first, shifted=True)
        if row.kind == "rowwise":
            for width in (4097, 16388):
                yield Case(op=row.name, dtype=dtype, rows=5, width=width, fields=first)


CASES = tuple(case for row in PLUGINS for case in _cases(row))
"""Every width in every dtype and form, misaligned pointers, and rows wider than one pass holds."""


def make_inputs(case: Case, seed: int) -> list[Tensor]:
    """The inputs of a case in its dtype: [rows, width] where the port has leading dims, else [width]."""
    generator = torch.Generator().manual_seed(seed)
    wide = [
        _rows(case.rows, case.width, generator)
        if port.dims.startswith("...")
        else 1 + 0.1 * torch.randn(case.width, generator=generator, dtype=torch.float64)
        for port in row_of(case.op).inputs
    ]
    return [values.to(getattr(torch, case.dtype)) for values in wide]


def reference(case: Case, inputs: list[Tensor], stored: Tensor | None = None) -> list[Tensor]:
    """The float64 outputs of a case.

    Args:
        case: whose op and fields.
        inputs: of `make_inputs`.
        stored: an op that fuses an Add rounds the sum before it goes on: the sum as stored (the exact one,
            rounded, when None).
    """
    row = row_of(case.op)
    wide = [t.double() for t in inputs]
    op = getattr(torch.ops.tblock, row.fuses or row.name)
    attributes = dict(zip((a.name for a in row.attributes), case.fields, strict=True))
    sums = []
    if row.fuses:
        sums = [wide[0] + wide[1]]
        rounded = sums[0].to(inputs[0].dtype) if stored is None else stored
        wide = [rounded.double(), *wide[2:]]
    outputs = op(*wide, **attributes)
    return [*sums, *(outputs if isinstance(outputs, tuple) else [outputs])]


def run_case(case: Case, launch: Launch, device: str = "cpu", seed: int = 0) -> Result:
    """Run one case and compare with float64.

    Args:
        case: of CASES.
        launch: how the kernel is called.
        device: torch device.
        seed: of the inputs.

    Returns:
        The result.
    """
    guard = _Guard(device, case.shifted)
    given = make_inputs(case, seed)
    if case.packed:
        inputs = list(guard.place(torch.cat(given, -1)).tensor_split(len(given), -1))
    else:
        inputs = [guard.place(values) for values in given]
    blank = torch.full((case.rows, case.width), torch.nan, dtype=given[0].dtype)
    outputs = [guard.place(blank, around=_MARK) for _ in row_of(case.op).outputs]
    # exp(25000) and the float16 overflow of 25000^2 are meant; numpy, under the interpreter, would warn.
    with numpy.errstate(over="ignore"):
        launch(case.op, [*inputs, *outputs], case.fields)
    wanted = reference(case, inputs, stored=outputs[0])
    missing = sum(int((y.isnan() & ~w.isnan()).sum()) for y, w in zip(outputs, wanted, strict=True))
    pairs = zip(outputs, wanted, strict=True)
    units = 0.0 if missing else max(error_units(y, w, case.dtype) for y, w in pairs)
    return Result(id=case.id, dtype=case.dtype, units=units, missing=missing, outside=guard.damage())


def error_units(y: Tensor, wanted: Tensor, dtype: str) -> float:
    """Largest |y - wanted| over max(|wanted|, RMS of its row, smallest normal), in unit roundoffs.

    Where the float64 value overflows the dtype, y must be the same infinity.

    Args:
        y: [rows, width], a float dtype.
        wanted: [rows, width] float64.
        dtype: name of y's dtype.
    """
    rounded = wanted.to(y.dtype)
    over = rounded.isinf()
    if not torch.equal(y[over], rounded[over]) or bool(y[~over].isinf().any()):
        return float("inf")
    wide, kept = y.double().masked_fill(over, 0.0), wanted.masked_fill(over, 0.0)
    scale = torch.maximum(kept.abs(), kept.square().mean(-1, keepdim=True).sqrt())
    scale = scale.clamp_min(torch.finfo(y.dtype).tiny)
    return float(((wide - kept).abs() / scale).max()) / UNIT_ROUNDOFF[dtype]


def triton_launch(source: ModuleType | None = None) -> Launch:
    """Launches through Triton; `source` replaces the shipped kernel file (tests pass broken ones)."""
    return functools.partial(launcher.launch, source=source)


def _rows(rows: int, width: int, generator: torch.Generator) -> Tensor:
    """[rows, width] float64: ordinary, +-25000 (squares overflow float16), small (eps matters), zero."""
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    x[1::4] = torch.where(x[1::4] < 0, -25000.0, 25000.0)
    x[2::4] *= 1e-3
    x[3::4] = 0.0
    return x


class _Guard:
    """Puts tensors into larger filled buffers and counts what happened around them."""

    def __init__(self, device: str, shifted: bool) -> None:
        self._device, self._start = device, _GUARD + int(shifted)
        self._placed: list[tuple[Tensor, int, float]] = []

    def place(self, values: Tensor, around: float = torch.nan) -> Tensor:
        total = self._start + values.numel() + _GUARD
        buffer = torch.full((total,), around, dtype=values.dtype, device=self._device)
        view = buffer[self._start : self._start + values.numel()].view(values.shape)
        view.copy_(values)
        self._placed.append((buffer, values.numel(), around))
        return view

    def damage(self) -> int:
        """Elements around the tensors that changed."""
        count = 0
        for buffer, size, around in self._placed:
            edges = torch.cat([buffer[: self._start], buffer[self._start + size :]])
            count += int((~edges.isnan() if around != around else edges != around).sum())
        return count


def main(arguments: list[str]) -> None:
    """Run cases and print one JSON line each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "runs",
        nargs="*",
        default=[""],
        metavar="START[@FILE]",
        help="cases whose id starts so, with the kernels of a file instead of the shipped ones; all cases",
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    # Tensors are small: more threads only get in the way of whatever else runs.
    torch.set_num_threads(1)
    for text in options.runs:
        start, _, file = text.partition("@")
        launch = triton_launch(_load(Path(file)) if file else None)
        for case in (c for c in CASES if c.id.startswith(start)):
            result = run_case(case, launch, seed=options.seed)
            print(json.dumps({"run": text, **asdict(result)}), flush=True)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1:])
