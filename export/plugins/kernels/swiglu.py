"""SwiGLU: kernel and tiles."""

import triton
import triton.language as tl

from tblock.export.plugins.tiles import Tile

# Small programs spread a decode step over all multiprocessors.
TILES = (
    Tile(aligned=True, cols=512, warps=2, max_width=65536, max_rows=4),
    Tile(aligned=True, cols=2048, warps=4),
    Tile(aligned=False, cols=1024, warps=4),
)


@triton.jit(do_not_specialize=["chunks", "units", "stride_units"])
def swiglu(
    gate_ptr,
    up_ptr,
    y_ptr,
    chunks,
    units,
    stride_units,
    ALIGN: tl.constexpr,
    COLS: tl.constexpr,
):
    """y = gate / (1 + exp(-gate)) * up, elementwise.

    Two separate inputs are one long row (F = all elements, one row); the two halves of a packed [rows, 2F]
    are rows of stride 2F, with up_ptr = gate_ptr + F.

    Args:
        gate_ptr, up_ptr: [rows, F] with a row stride, one float dtype.
        y_ptr: [rows, F], same dtype, contiguous.
        chunks: int64, programs per row.
        units: int64, F / ALIGN.
        stride_units: int64, row stride of gate and up in elements / ALIGN.
        COLS: columns of one program, a power of two.
    """
    width = units * ALIGN
    program = tl.program_id(0).to(tl.int64)
    row = program // chunks
    col = (program - row * chunks) * COLS + tl.arange(0, COLS)
    mask = col < width
    source = row * (stride_units * ALIGN)
    gate = tl.load(gate_ptr + source + col, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + source + col, mask=mask, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + row * width + col, y.to(y_ptr.dtype.element_ty), mask=mask)
