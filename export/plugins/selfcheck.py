"""Compares the kernels with float64 over one table of cases: by Triton's interpreter or JIT, or the library.

Outputs start as NaN and every input is surrounded by NaN, so an element left out and a load from outside
show; a store outside an output shows in the marks around it. As a program it runs the interpreter, which must
be chosen before triton is imported: `TRITON_INTERPRET=1 python -m tblock.export.plugins.selfcheck`, one JSON
line per case.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor

import tblock.ops  # noqa: F401 (registers torch.ops.tblock, the reference)
from tblock.export.plugins.variants import DTYPES

EPS = 1e-5

Launch = Callable[[str, list[Tensor], float, float], None]
"""(op, inputs then outputs, eps, weight_offset): writes the outputs."""

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

BUDGET = {
    # In the interpreter: 20 seeds over CASES gave at most 4.6, 1.01 and 1.99 units.
    "interpreter": {"float32": 8.0, "float16": 1.1, "bfloat16": 2.1},
    # The interpreter truncates float32 to bfloat16 (2 units); compiled code rounds (1 unit). float32 leaves
    # room for the approximate exp2, division and root of the GPU. Not yet measured on one.
    "gpu": {"float32": 32.0, "float16": 1.1, "bfloat16": 1.1},
}
"""Most allowed error by place and dtype, in unit roundoffs of the dtype (see `error_units`)."""

_WIDTHS = (1, 7, 576, 1000, 4096, 14336, 65536)
_GUARD = 65536 + 64  # elements around every tensor: more than the widest tile
_MARK = 7.0  # around outputs: NaN would hide a stored NaN


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of one kernel.

    Attributes:
        op, dtype: of OPS and DTYPES.
        rows, width: of the call.
        packed: gate and up are the halves of one tensor; swiglu only.
        weight_offset: norms only.
        shifted: whether tensors start one element past a 16-byte boundary.
    """

    op: str
    dtype: str
    rows: int
    width: int
    packed: bool = False
    weight_offset: float = 0.0
    shifted: bool = False

    @property
    def id(self) -> str:
        """Readable and unique."""
        marks = ["packed"] * self.packed + ["offset"] * bool(self.weight_offset) + ["shifted"] * self.shifted
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


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for width in _WIDTHS:
            rows = 19 if width <= 576 else 5
            common: dict[str, Any] = {"dtype": dtype, "width": width, "rows": rows}
            for op in ("rms_norm", "add_rms_norm"):
                yield Case(op=op, **common)
                yield Case(op=op, weight_offset=1.0, **common)
            yield Case(op="swiglu", **common)
            yield Case(op="swiglu", packed=True, **common)
        for op in ("rms_norm", "add_rms_norm", "swiglu"):
            yield Case(op=op, dtype=dtype, width=4096, rows=5, shifted=True)
        yield Case(op="rms_norm", dtype=dtype, width=4097, rows=5)
        yield Case(op="add_rms_norm", dtype=dtype, width=16388, rows=5)


CASES = tuple(_cases())
"""Every width in every dtype and form, misaligned pointers, and a row wider than one pass holds."""


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
    dtype = getattr(torch, case.dtype)
    generator = torch.Generator().manual_seed(seed)
    shape = (case.rows, case.width)
    guard = _Guard(device, case.shifted)
    if case.op == "swiglu":
        if case.packed:
            both = guard.place(_rows(case.rows, 2 * case.width, generator).to(dtype))
            inputs = [both[:, : case.width], both[:, case.width :]]
        else:
            inputs = [guard.place(_rows(*shape, generator).to(dtype)) for _ in range(2)]
    else:
        count = 1 if case.op == "rms_norm" else 2
        inputs = [guard.place(_rows(*shape, generator).to(dtype)) for _ in range(count)]
        weight = (
            1 - case.weight_offset + 0.1 * torch.randn(case.width, generator=generator, dtype=torch.float64)
        )
        inputs.append(guard.place(weight.to(dtype)))
    blank = torch.full(shape, torch.nan, dtype=dtype)
    outputs = [guard.place(blank, around=_MARK) for _ in range(1 + (case.op == "add_rms_norm"))]
    # exp(25000) and the float16 overflow of 25000^2 are meant; numpy, under the interpreter, would warn.
    with numpy.errstate(over="ignore"):
        launch(case.op, [*inputs, *outputs], EPS, case.weight_offset)
    wanted = _reference(case, inputs, outputs)
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
    """Launches through Triton; `source` replaces the shipped kernels (tests pass broken ones)."""
    from tblock.export.plugins import kernels, launcher

    module = source or kernels

    def launch(op: str, tensors: list[Tensor], eps: float, weight_offset: float) -> None:
        options = {} if op == "swiglu" else {"eps": eps, "weight_offset": weight_offset}
        getattr(launcher, op)(*tensors, source=module, **options)

    return launch


def run(cases: Iterable[Case], launch: Launch, device: str = "cpu", seed: int = 0) -> Iterator[Result]:
    """Results of many cases, in order."""
    for case in cases:
        yield run_case(case, launch, device, seed)


def _rows(rows: int, width: int, generator: torch.Generator) -> Tensor:
    """[rows, width] float64: ordinary, +-25000 (squares overflow float16), small (eps matters), zero."""
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    x[1::4] = torch.where(x[1::4] < 0, -25000.0, 25000.0)
    x[2::4] *= 1e-3
    x[3::4] = 0.0
    return x


def _reference(case: Case, inputs: list[Tensor], outputs: list[Tensor]) -> list[Tensor]:
    if case.op == "swiglu":
        return [torch.ops.tblock.swiglu(*(t.double() for t in inputs))]
    options = {"eps": EPS, "weight_offset": case.weight_offset}
    *parts, weight = inputs
    # The contract rounds the sum before it is normalized: y is judged against the sum as stored.
    x = parts[0] if case.op == "rms_norm" else outputs[0]
    y = torch.ops.tblock.rms_norm(x.double(), weight.double(), **options)
    return [y] if case.op == "rms_norm" else [parts[0].double() + parts[1].double(), y]


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
    """Run CASES, or those whose id holds --only, and print one JSON line each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kernels", type=Path, help="a kernel file instead of the shipped one")
    parser.add_argument("--only", default="", help="part of the case id")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    source = None
    if options.kernels:
        spec = importlib.util.spec_from_file_location("other_kernels", options.kernels)
        assert spec
        assert spec.loader
        source = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(source)
    # Tensors are small: more threads only get in the way of whatever else runs.
    torch.set_num_threads(1)
    for result in run((c for c in CASES if options.only in c.id), triton_launch(source), seed=options.seed):
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
