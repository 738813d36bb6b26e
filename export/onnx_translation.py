"""How torch.onnx writes the contract's ops: fused ones as `tblock` nodes, the others as standard ones."""

from collections.abc import Callable
from typing import Any

import onnxscript
import torch

from tblock import ops  # noqa: F401  (registers torch.ops.tblock)
from tblock.contract import ATTENTION, PLUGINS, ROPE, OpRow
from tblock.export import attention_form, onnx_schema


def translation_table(opset_version: int, form: str) -> dict[Any, Callable[..., Any]]:
    """torch op to the function that emits it, for `torch.onnx.export(custom_translation_table=...)`.

    Args:
        opset_version: of the model.
        form: attention form.
    """
    op = getattr(onnxscript, f"opset{opset_version}")

    def rope(x: Any, cos: Any, sin: Any, *, interleaved: int) -> Any:
        return _rope(op, x, cos, sin, interleaved)

    def attention(q: Any, k: Any, v: Any, mask: Any = None, **attributes: Any) -> Any:
        return attention_form.emit(op, form, q, k, v, mask, **attributes)

    table: dict[Any, Callable[..., Any]] = {_torch_op(row): _fused(row) for row in PLUGINS}
    return {**table, _torch_op(ROPE): rope, _torch_op(ATTENTION): attention}


def _torch_op(row: OpRow) -> Any:
    return getattr(torch.ops.tblock, row.name).default


def _fused(row: OpRow) -> Callable[..., Any]:
    node = getattr(onnx_schema.opset(), str(row.onnx_name))

    def emit(*tensors: Any, **attributes: Any) -> Any:
        return node(*tensors, **attributes, **onnx_schema.plugin_attributes(row))

    return emit


def _rope(op: Any, x: Any, cos: Any, sin: Any, interleaved: int) -> Any:
    """Rotate in float32, round once. x [B, X, S, E], tables [..., S, R/2] float32."""
    half, width = cos.shape[-1], x.shape[-1]
    rotated, passed = x, None
    if 2 * half < width:
        rotated, passed = _part(op, x, 0, 2 * half), _part(op, x, 2 * half, width)
    wide = op.Cast(rotated, to=attention_form.FLOAT)
    if interleaved:
        pairs = op.Reshape(wide, op.Constant(value_ints=[0, 0, 0, half, 2]))
        first, second = (
            op.Squeeze(t, op.Constant(value_ints=[-1])) for t in op.Split(pairs, num_outputs=2, axis=-1)
        )
    else:
        first, second = op.Split(wide, num_outputs=2, axis=-1)
    real = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
    imaginary = op.Add(op.Mul(second, cos), op.Mul(first, sin))
    if interleaved:
        last = op.Constant(value_ints=[-1])
        pairs = op.Concat(op.Unsqueeze(real, last), op.Unsqueeze(imaginary, last), axis=-1)
        y = op.Reshape(pairs, op.Constant(value_ints=[0, 0, 0, 2 * half]))
    else:
        y = op.Concat(real, imaginary, axis=-1)
    y = attention_form.like(op, y, x)
    return y if passed is None else op.Concat(y, passed, axis=-1)


def _part(op: Any, x: Any, start: int, end: int) -> Any:
    """x[..., start:end]."""
    bounds = (op.Constant(value_ints=[n]) for n in (start, end, -1))
    return op.Slice(x, *bounds)
