"""The GPU kernels behind the plugins, in Triton, each written once.

Cast policy of all of them: read in the tensor's dtype, compute in float32, round once on the way out. Offsets
of rows are 64-bit (a row index times a width passes 2^31 in a long prefill). Widths and strides come in units
of `ALIGN` elements, so the compiler knows that every row starts on a multiple of 16 bytes where the variant
says so, and reads 16 bytes at a time. Owns the math on the GPU; which variant runs is decided in `variants`,
who launches in `launcher` (Python) and `trt-plugin` (C++).
"""

import triton
import triton.language as tl

# Sizes stay values: a recompile per size would be of no use, and size 1 would lose its type.
_SIZES = ["rows", "units", "chunks", "stride_units"]


@triton.jit(do_not_specialize=_SIZES[:2])
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


@triton.jit(do_not_specialize=_SIZES[:2])
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


@triton.jit(do_not_specialize=_SIZES[1:])
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
