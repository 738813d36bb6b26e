"""RMSNorm: kernel and tiles."""

import triton
import triton.language as tl

from tblock.export.plugins.tiles import row_tiles

# (rows, columns, warps, one pass). 16 elements a thread keep two (16-bit) or four (float32) 16-byte loads in
# flight; 16384 columns are the widest that hold x, residual and weight without spills (tests read the
# assembler's word on it). Sizes are from the compiler's output; no GPU sweep stands behind them yet.
# Element by element every load has its own address and mask, so fewer columns fit without spills.
TILES = row_tiles(
    aligned=(
        (16, 128, 4, True),
        (4, 512, 4, True),
        (1, 1024, 4, True),
        (1, 2048, 4, True),
        (1, 4096, 8, True),
        (1, 8192, 16, True),
        (1, 16384, 16, True),
        (1, 8192, 16, False),
    ),
    unaligned=((4, 256, 4, True), (1, 2048, 8, True), (1, 2048, 8, False)),
)


@triton.jit(do_not_specialize=["rows", "units"])
def rms_norm(
    x_ptr,
    weight_ptr,
    y_ptr,
    rows,
    units,
    eps,
    weight_offset,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ONE_PASS: tl.constexpr,
):
    """y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight), over the last axis.

    Args:
        x_ptr, y_ptr: [rows, D], one float dtype.
        weight_ptr: [D], same dtype.
        rows: int64.
        units: int64, D / ALIGN.
        eps, weight_offset: float32.
        ROWS: rows of one program; 1 unless ONE_PASS.
        COLS: columns held at a time, a power of two; at least D when ONE_PASS.
    """
    width = units * ALIGN
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    # Broadcast before use: every row of the tile then loads the weight in the layout of x, as vectors.
    col = tl.broadcast_to(tl.arange(0, COLS)[None, :], (ROWS, COLS))
    live = row < rows
    start = row * width
    if ONE_PASS:
        mask = live & (col < width)
        # The weight is asked for before the reduction, so that its latency hides behind that of x.
        weight = tl.load(weight_ptr + col, mask=col < width, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + start + col, mask=mask, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / width.to(tl.float32) + eps)
        y = x * scale * (weight + weight_offset)
        tl.store(y_ptr + start + col, y.to(y_ptr.dtype.element_ty), mask=mask)
    else:
        squares = tl.zeros((ROWS, COLS), dtype=tl.float32)
        for first in range(0, width, COLS):
            mask = live & (first + col < width)
            x = tl.load(x_ptr + start + first + col, mask=mask, other=0.0).to(tl.float32)
            squares += x * x
        scale = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / width.to(tl.float32) + eps)
        for first in range(0, width, COLS):
            mask = live & (first + col < width)
            weight = tl.load(weight_ptr + first + col, mask=first + col < width, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + start + first + col, mask=mask, other=0.0).to(tl.float32)
            y = x * scale * (weight + weight_offset)
            tl.store(y_ptr + start + first + col, y.to(y_ptr.dtype.element_ty), mask=mask)
