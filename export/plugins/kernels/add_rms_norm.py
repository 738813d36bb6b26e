"""The residual add and the RMSNorm behind it, in one pass: kernel and tiles."""

import triton
import triton.language as tl

from tblock.export.plugins.kernels.rms_norm import TILES as TILES


@triton.jit(do_not_specialize=["rows", "units"])
def add_rms_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    sum_ptr,
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
    """sum = x + residual, rounded; y = rms_norm(sum): both in one pass.

    Args:
        x_ptr, residual_ptr, sum_ptr, y_ptr: [rows, D], one float dtype.
        weight_ptr: [D], same dtype.
        rows, units, eps, weight_offset, ALIGN, ROWS, COLS, ONE_PASS: as in rms_norm.
    """
    width = units * ALIGN
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    # Broadcast before use: every row of the tile then loads the weight in the layout of x, as vectors.
    col = tl.broadcast_to(tl.arange(0, COLS)[None, :], (ROWS, COLS))
    live = row < rows
    start = row * width
    if ONE_PASS:
        mask = live & (col < width)
        weight = tl.load(weight_ptr + col, mask=col < width, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + start + col, mask=mask, other=0.0).to(tl.float32)
        residual = tl.load(residual_ptr + start + col, mask=mask, other=0.0).to(tl.float32)
        # Rounded before it is normalized, as the unfused graph does: both outputs describe the same numbers.
        total = (x + residual).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + start + col, total, mask=mask)
        wide = total.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, axis=1, keep_dims=True) / width.to(tl.float32) + eps)
        y = wide * scale * (weight + weight_offset)
        tl.store(y_ptr + start + col, y.to(y_ptr.dtype.element_ty), mask=mask)
    else:
        squares = tl.zeros((ROWS, COLS), dtype=tl.float32)
        for first in range(0, width, COLS):
            mask = live & (first + col < width)
            x = tl.load(x_ptr + start + first + col, mask=mask, other=0.0).to(tl.float32)
            residual = tl.load(residual_ptr + start + first + col, mask=mask, other=0.0).to(tl.float32)
            total = (x + residual).to(sum_ptr.dtype.element_ty)
            tl.store(sum_ptr + start + first + col, total, mask=mask)
            wide = total.to(tl.float32)
            squares += wide * wide
        # The second pass reads what the first one stored: every thread of the program must have stored it.
        tl.debug_barrier()
        scale = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / width.to(tl.float32) + eps)
        for first in range(0, width, COLS):
            mask = live & (first + col < width)
            weight = tl.load(weight_ptr + first + col, mask=first + col < width, other=0.0).to(tl.float32)
            wide = tl.load(sum_ptr + start + first + col, mask=mask, other=0.0).to(tl.float32)
            y = wide * scale * (weight + weight_offset)
            tl.store(y_ptr + start + first + col, y.to(y_ptr.dtype.element_ty), mask=mask)
