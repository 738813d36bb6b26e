"""The one table of compiled kernel variants, and the rule that picks one from a shape.

The C++ library gets this table and the same rule (first row that fits) through a generated file, so Python
and C++ cannot pick differently; a test asks both. Imports only the standard library.
"""

from dataclasses import dataclass

OPS = ("rms_norm", "add_rms_norm", "swiglu")
"""Kernel names; their index is the op id of the C interface."""

DTYPES = {"float32": ("fp32", 4), "float16": ("fp16", 2), "bfloat16": ("bf16", 2)}
"""dtype -> (Triton's and our short name, bytes); the position is the dtype id of the C interface."""

MAX_WIDTH = 65536
"""Widest row the norms accept: the width the tests go up to. swiglu has no limit."""

VECTOR_BYTES = 16
"""The widest load of one thread on sm_80 and later."""

_NO_LIMIT = 2**62


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


# (tile rows, columns, warps, one pass). 16 elements a thread keep two (16-bit) or four (float32) 16-byte
# loads in flight; 16384 columns are the widest that hold x, residual and weight without spills (tests read
# the assembler's word on it). Sizes are from the compiler's output; no GPU sweep stands behind them yet.
_NORM_ALIGNED: tuple[tuple[int, int, int, bool], ...] = (
    (16, 128, 4, True),
    (4, 512, 4, True),
    (1, 1024, 4, True),
    (1, 2048, 4, True),
    (1, 4096, 8, True),
    (1, 8192, 16, True),
    (1, 16384, 16, True),
    (1, 8192, 16, False),
)
# Element by element every load has its own address and mask, so fewer columns fit without spills.
_NORM_UNALIGNED: tuple[tuple[int, int, int, bool], ...] = (
    (4, 256, 4, True),
    (1, 2048, 8, True),
    (1, 2048, 8, False),
)

# (columns, warps, widest row, most rows): small programs spread a decode step over all multiprocessors.
_SWIGLU_ALIGNED: tuple[tuple[int, int, int, int], ...] = ((512, 2, 65536, 4), (2048, 4, _NO_LIMIT, _NO_LIMIT))
_SWIGLU_UNALIGNED: tuple[tuple[int, int, int, int], ...] = ((1024, 4, _NO_LIMIT, _NO_LIMIT),)


def _table() -> tuple[Variant, ...]:
    rows = []
    for dtype, (_, size) in DTYPES.items():
        vector = VECTOR_BYTES // size
        for op in ("rms_norm", "add_rms_norm"):
            for align, tiles in ((vector, _NORM_ALIGNED), (1, _NORM_UNALIGNED)):
                for tile_rows, cols, warps, one_pass in tiles:
                    rows.append(
                        Variant(
                            op=op,
                            dtype=dtype,
                            align=align,
                            tile_rows=tile_rows,
                            cols=cols,
                            warps=warps,
                            one_pass=one_pass,
                            max_width=cols if one_pass else MAX_WIDTH,
                            max_rows=_NO_LIMIT,
                        )
                    )
        for align, blocks in ((vector, _SWIGLU_ALIGNED), (1, _SWIGLU_UNALIGNED)):
            for cols, warps, max_width, max_rows in blocks:
                rows.append(
                    Variant(
                        op="swiglu",
                        dtype=dtype,
                        align=align,
                        tile_rows=1,
                        cols=cols,
                        warps=warps,
                        one_pass=True,
                        max_width=max_width,
                        max_rows=max_rows,
                    )
                )
    return tuple(rows)


VARIANTS = _table()
"""Every variant, in the order of preference within an op and dtype."""


def select(op: str, dtype: str, rows: int, width: int, alignment: int) -> int | None:
    """The first variant that fits.

    Args:
        op, dtype: of OPS and DTYPES.
        rows: rows of the call (1 for two-input swiglu, which is one long row).
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
