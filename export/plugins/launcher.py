"""Launches the kernels on torch tensors, by Triton's JIT or interpreter, with the library's variant table.

For tests and measurements: a TensorRT engine launches the same variants from C++. Owns no math and no choice
of variant, and knows no op by name.
"""

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

from tblock.contract import OpRow
from tblock.errors import ConfigError
from tblock.export.plugins import kernels
from tblock.export.plugins.variants import VARIANTS, VECTOR_BYTES, max_width, row_of, select


def launch(
    op: str, tensors: Sequence[Tensor], fields: Sequence[float], *, source: ModuleType | None = None
) -> None:
    """Run one op.

    Args:
        op: kernel name.
        tensors: the row's inputs, then its outputs, which are written; all of one of float32, float16,
            bfloat16. `...` ports are [rows, width], the others [width]. Contiguous, but the inputs of an
            elementwise op may share a larger row stride, as the parts of a packed tensor do.
        fields: the row's attributes, in order.
        source: module with the kernel, instead of the shipped one.

    Raises:
        ConfigError: shapes, strides, dtypes or widths that no variant takes.
    """
    row = row_of(op)
    rows, width = tensors[0].shape
    stride = _row_stride(row, tensors)
    if row.kind == "elementwise" and stride == width:
        rows, width, stride = 1, rows * width, rows * width
    size = tensors[0].element_size()
    bits = VECTOR_BYTES | width * size | (0 if rows == 1 else stride * size)
    for tensor in tensors:
        bits |= tensor.data_ptr()
    index = select(op, str(tensors[0].dtype).removeprefix("torch."), rows, width, bits & -bits)
    if index is None:
        raise ConfigError(f"{op}: width {width}: at most {max_width(op)}")
    variant = VARIANTS[index]
    kernel = getattr(source or kernels.module(op), op)
    chunks = -(-width // variant.cols) if row.kind == "elementwise" else 1
    units, stride_units = width // variant.align, stride // variant.align
    sizes = (rows, units) if row.kind == "rowwise" else (chunks, units, stride_units)
    constants = variant.constants(kernel.arg_names)
    grid = (-(-rows // variant.tile_rows) * chunks,)
    kernel[grid](*tensors, *sizes, *fields, **constants, num_warps=variant.warps)


def _row_stride(row: OpRow, tensors: Sequence[Tensor]) -> int:
    if any(t.dtype != tensors[0].dtype for t in tensors):
        raise ConfigError(f"{row.name}: dtypes {[str(t.dtype) for t in tensors]}: must be equal")
    inputs = tensors[: len(row.inputs)] if row.kind == "elementwise" else ()
    if not all(t.is_contiguous() for t in tensors[len(inputs) :]):
        raise ConfigError(f"{row.name}: tensors must be contiguous")
    strides = [t.stride() for t in inputs]
    if any(s != strides[0] or s[1] != 1 for s in strides):
        raise ConfigError(f"{row.name}: input strides {strides}: must be equal, and 1 along the last axis")
    return strides[0][0] if strides else tensors[0].shape[1]
