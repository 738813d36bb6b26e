"""Launches the kernels on torch tensors, by Triton's JIT or interpreter, with the library's variant table.

For tests and measurements: a TensorRT engine launches the same variants from C++. Owns no math and no choice
of variant.
"""

from types import ModuleType

from torch import Tensor

from tblock.errors import ConfigError
from tblock.export.plugins import kernels
from tblock.export.plugins.variants import MAX_WIDTH, VARIANTS, VECTOR_BYTES, Variant, select


def rms_norm(
    x: Tensor, weight: Tensor, y: Tensor, *, eps: float, weight_offset: float, source: ModuleType = kernels
) -> None:
    """y = rms_norm(x).

    Args:
        x, y: [rows, D], contiguous, one of float32, float16, bfloat16; y is written.
        weight: [D], same dtype.
        eps, weight_offset: as in the contract.
        source: module with the kernels.

    Raises:
        ConfigError: shapes, dtypes or widths that no variant takes.
    """
    rows, width = x.shape
    variant = _pick("rms_norm", rows, width, [x, weight, y])
    grid = (-(-rows // variant.tile_rows),)
    source.rms_norm[grid](
        x, weight, y, rows, width // variant.align, eps, weight_offset, **_norm_options(variant)
    )


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    total: Tensor,
    y: Tensor,
    *,
    eps: float,
    weight_offset: float,
    source: ModuleType = kernels,
) -> None:
    """total = x + residual; y = rms_norm(total).

    Args:
        x, residual, total, y: [rows, D], contiguous, one dtype; total and y are written.
        weight: [D], same dtype.
        eps, weight_offset: as in the contract.
        source: module with the kernels.

    Raises:
        ConfigError: as rms_norm.
    """
    rows, width = x.shape
    variant = _pick("add_rms_norm", rows, width, [x, residual, weight, total, y])
    grid = (-(-rows // variant.tile_rows),)
    sizes = (rows, width // variant.align)
    source.add_rms_norm[grid](
        x, residual, weight, total, y, *sizes, eps, weight_offset, **_norm_options(variant)
    )


def swiglu(gate: Tensor, up: Tensor, y: Tensor, *, source: ModuleType = kernels) -> None:
    """y = SiLU(gate) * up, for two tensors or the two halves of a packed one.

    Args:
        gate, up: [rows, F], same row stride, unit stride in F, one dtype.
        y: [rows, F], contiguous, same dtype; written.
        source: module with the kernels.

    Raises:
        ConfigError: as rms_norm; or strides that differ.
    """
    rows, width = gate.shape
    if gate.stride() != up.stride() or gate.stride(1) != 1 or not y.is_contiguous():
        raise ConfigError(
            f"gate strides {gate.stride()}, up {up.stride()}: must be equal, and 1 along F; y contiguous"
        )
    stride = gate.stride(0)
    if stride == width:
        rows, width, stride = 1, rows * width, rows * width
    variant = _pick("swiglu", rows, width, [gate, up, y], stride)
    chunks = -(-width // variant.cols)
    sizes = (chunks, width // variant.align, stride // variant.align)
    source.swiglu[(rows * chunks,)](
        gate, up, y, *sizes, ALIGN=variant.align, COLS=variant.cols, num_warps=variant.warps
    )


def _norm_options(variant: Variant) -> dict[str, int | bool]:
    return {
        "ALIGN": variant.align,
        "ROWS": variant.tile_rows,
        "COLS": variant.cols,
        "ONE_PASS": variant.one_pass,
        "num_warps": variant.warps,
    }


def _pick(op: str, rows: int, width: int, tensors: list[Tensor], stride: int | None = None) -> Variant:
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    if any(t.dtype != tensors[0].dtype for t in tensors):
        raise ConfigError(f"{op}: dtypes {[str(t.dtype) for t in tensors]}: must be equal")
    if stride is None and not all(t.is_contiguous() for t in tensors):
        raise ConfigError(f"{op}: tensors must be contiguous")
    size = tensors[0].element_size()
    bits = VECTOR_BYTES | width * size | (0 if stride is None or rows == 1 else stride * size)
    for tensor in tensors:
        bits |= tensor.data_ptr()
    index = select(op, dtype, rows, width, bits & -bits)
    if index is None:
        raise ConfigError(f"{op}: width {width}: at most {MAX_WIDTH}")
    return VARIANTS[index]
