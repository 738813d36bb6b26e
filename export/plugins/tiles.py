"""The shapes of work that a kernel file offers. Imports only the standard library."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_WIDTH = 65536
"""Widest row that rowwise kernels accept: the width the tests go up to. Elementwise ones have no limit."""

NO_LIMIT = 2**62


@dataclass(frozen=True, kw_only=True)
class Tile:
    """What one program of a kernel works on.

    Attributes:
        aligned: every row starts on a multiple of 16 bytes and is one long.
        rows, cols: of one program.
        warps: of one program.
        one_pass: the row is held in registers and memory is read once; otherwise twice.
        max_width, max_rows: the largest shape that may take it.
    """

    aligned: bool
    rows: int = 1
    cols: int
    warps: int
    one_pass: bool = True
    max_width: int = NO_LIMIT
    max_rows: int = NO_LIMIT


def row_tiles(
    *, aligned: Sequence[tuple[int, int, int, bool]], unaligned: Sequence[tuple[int, int, int, bool]]
) -> tuple[Tile, ...]:
    """Tiles of a rowwise kernel, in order of preference, from (rows, cols, warps, one pass)."""
    return tuple(
        Tile(
            aligned=table is aligned,
            rows=rows,
            cols=cols,
            warps=warps,
            one_pass=one_pass,
            max_width=cols if one_pass else MAX_WIDTH,
        )
        for table in (aligned, unaligned)
        for rows, cols, warps, one_pass in table
    )
