"""The one table of compiled kernel variants, and the rule that picks one from a shape.

The C++ library gets this table and the same rule (first row that fits) through a generated file, so Python
and C++ cannot pick differently; a test asks both. Loads triton: the tiles stand beside the kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tblock.contract import PLUGINS, OpRow
from tblock.dtypes import DTYPES as ALL_DTYPES
from tblock.dtypes import FLOATS
from tblock.errors import ExportError
from tblock.export.plugins import kernels

OPS = tuple(row.name for row in PLUGINS)
"""Kernel names; their index is the op id of the C interface."""

DTYPES = {name: (ALL_DTYPES[name].spellings[0], ALL_DTYPES[name].itemsize) for name in FLOATS}
"""dtype -> (Triton's and our short name, bytes); the position is the dtype id of the C interface."""

VECTOR_BYTES = 16
"""The widest load of one thread on sm_80 and later."""

SIZES = {"rowwise": ("rows", "units"), "elementwise": ("chunks", "units", "stride_units")}
"""A kernel's size arguments by kind, int64: rows; row width over ALIGN; programs per row; row stride of the
inputs over ALIGN."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One compiled kernel.

    Attributes:
        op, dtype: of OPS and DTYPES.
        align: elements that every row start and the width are a multiple of; above 1: pointers at 16 bytes.
        tile_rows, cols: rows and columns of one program.
        warps: of one program.
        one_pass: the row is held in registers and memory is read once; otherwise twice.
        max_width, max_rows: the largest shape that may select it.
    """

    op: str
    dtype: str
    align: int
    tile_rows: int
    cols: int
    warps: int
    one_pass: bool
    max_width: int
    max_rows: int

    @property
    def name(self) -> str:
        """Entry point in the compiled module."""
        passes = "" if self.one_pass else "_two_pass"
        return f"{self.op}_{DTYPES[self.dtype][0]}_a{self.align}_r{self.tile_rows}_c{self.cols}{passes}"

    def constants(self, arguments: Sequence[str]) -> dict[str, int | bool]:
        """The compile-time constants among a kernel's arguments."""
        every = {"ALIGN": self.align, "ROWS": self.tile_rows, "COLS": self.cols, "ONE_PASS": self.one_pass}
        return {name: value for name, value in every.items() if name in arguments}


def row_of(op: str) -> OpRow:
    """The contract's row of an op."""
    return PLUGINS[OPS.index(op)]


def arguments(row: OpRow) -> dict[str, str]:
    """A kernel's run-time arguments in order, with their types: `T*`, `i64`, `fp32` or `i32`."""
    assert row.kind is not None
    types = {f"{port.name}_ptr": "T*" for port in (*row.inputs, *row.outputs)}
    types |= dict.fromkeys(SIZES[row.kind], "i64")
    return types | {a.name: {"float": "fp32", "int": "i32"}[a.kind] for a in row.attributes}


def check_arguments(row: OpRow, names: Sequence[str]) -> None:
    """Refuse a kernel whose arguments are not those of its row.

    Raises:
        ExportError: names both lists.
    """
    found, wanted = [name for name in names if not name.isupper()], list(arguments(row))
    if found != wanted:
        raise ExportError(
            f"kernel {row.name} takes {', '.join(found)}; the contract's row: {', '.join(wanted)}"
        )


def _table() -> tuple[Variant, ...]:
    return tuple(
        Variant(
            op=op,
            dtype=dtype,
            align=VECTOR_BYTES // size if tile.aligned else 1,
            tile_rows=tile.rows,
            cols=tile.cols,
            warps=tile.warps,
            one_pass=tile.one_pass,
            max_width=tile.max_width,
            max_rows=tile.max_rows,
        )
        for op in OPS
        for dtype, (_, size) in DTYPES.items()
        for tile in kernels.module(op).TILES
    )


VARIANTS = _table()
"""Every variant, in the order of preference within an op and dtype."""


def max_width(op: str) -> int:
    """The widest row that an op has a variant for."""
    return max(variant.max_width for variant in VARIANTS if variant.op == op)


def select(op: str, dtype: str, rows: int, width: int, alignment: int) -> int | None:
    """The first variant that fits.

    Args:
        op, dtype: of OPS and DTYPES.
        rows: rows of the call (1 for contiguous elementwise, which is one long row).
        width: elements of a row.
        alignment: largest power of two, in bytes and at most 16, that divides every pointer, the row stride
            and the row's size.

    Returns:
        Index into VARIANTS, or None where no variant takes the shape.
    """
    size = DTYPES[dtype][1]
    for index, row in enumerate(VARIANTS):
        aligned = row.align == 1 or alignment >= row.align * size
        if (
            row.op == op
            and row.dtype == dtype
            and aligned
            and width <= row.max_width
            and rows <= row.max_rows
        ):
            return index
    return None
