"""Which ONNX form attention takes, why, and the nodes of each form.

`attention-23`: the standard operator. `decomposed`: MatMul, Softmax, MatMul with grouped heads folded into
rows, scores and softmax in float32. Masks are always built here from positions: the operator's own causal
flag aligns upper-left and is only used where queries and keys are the same tokens.
"""

from dataclasses import dataclass
from typing import Any

from tblock.config import BlockConfig
from tblock.export.engine.attention_kernels import DEDICATED_WIDTHS

FLOAT, BOOL = 1, 9
"""ONNX element types."""


@dataclass(frozen=True)
class AttentionForm:
    """The chosen form and the reason, for the export report."""

    name: str
    reason: str


def choose(configs: tuple[BlockConfig, ...], opset: int, dtype: str) -> AttentionForm:
    """The form of every attention in one graph.

    Args:
        configs: of the blocks in the graph.
        opset: of the model.
        dtype: of the block.
    """
    if opset < 23:
        return AttentionForm("decomposed", f"opset {opset} has no Attention operator (23 has)")
    if any(c.attn_soft_cap for c in configs):
        return AttentionForm("decomposed", "TensorRT-RTX's Attention takes no soft cap")
    odd = [c.head_dim for c in configs if c.head_dim not in DEDICATED_WIDTHS]
    if dtype != "float32" and odd:
        why = f"TensorRT-RTX has no {dtype} kernel for head width {odd[0]}; its own way would be all {dtype}"
        return AttentionForm("decomposed", why)
    return AttentionForm("attention-23", "the standard operator, taken by ONNX Runtime and TensorRT")


def emit(
    op: Any,
    form: str,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    *,
    scale: float,
    causal: int,
    window: int,
    soft_cap: float,
):
    """Emit one attention.

    Args:
        op: the standard opset, recording.
        form: name of the chosen form.
        q, k, v: [B, H, S, E], [B, K, T, E], [B, K, T, E].
        mask: [B, 1, 1 or S, T] bool or None.
        scale, causal, window, soft_cap: as in the contract.

    Returns:
        [B, H, S, E]; rows that see no key are 0.
    """
    square = q.shape[2] == k.shape[2]
    if form == "attention-23" and mask is None and square and not window:
        return op.Attention(q, k, v, scale=scale, is_causal=causal)[0]
    seen = _causal(op, q, k, window) if causal else None
    full = seen if mask is None else mask if seen is None else op.And(mask, seen)
    if form == "attention-23":
        if causal == 0 and full is not None:
            full = op.Expand(
                full, op.Concat(op.Constant(value_ints=[1, 1]), _size(op, q, 2), _size(op, k, 2), axis=0)
            )
        y = op.Attention(q, k, v, full, scale=scale)[0]
        return y if mask is None else op.Where(_any(op, full), y, like(op, _zero(op), q))
    return _decomposed(op, q, k, v, full, mask is not None, scale, soft_cap)


def _decomposed(
    op: Any, q: Any, k: Any, v: Any, full: Any, empty_rows: bool, scale: float, soft_cap: float
) -> Any:
    heads, kv_heads, width = q.shape[1], k.shape[1], q.shape[3]
    grouped = heads != kv_heads
    wide_q = op.Mul(op.Cast(q, to=FLOAT), op.Constant(value_float=scale))
    if grouped:
        wide_q = op.Reshape(wide_q, op.Constant(value_ints=[0, kv_heads, -1, width]))
    scores = op.MatMul(wide_q, op.Transpose(op.Cast(k, to=FLOAT), perm=[0, 1, 3, 2]))
    if grouped:
        shape = op.Concat(
            op.Constant(value_ints=[0, heads]), _size(op, q, 2), op.Constant(value_ints=[-1]), axis=0
        )
        scores = op.Reshape(scores, shape)
    if soft_cap:
        cap = op.Constant(value_float=soft_cap)
        scores = op.Mul(op.Tanh(op.Div(scores, cap)), cap)
    if full is not None:
        scores = op.Where(full, scores, op.Constant(value_float=float("-inf")))
    weights = op.Softmax(scores, axis=-1)
    if empty_rows:
        weights = op.Where(_any(op, full), weights, _zero(op))
    if grouped:
        shape = op.Concat(op.Constant(value_ints=[0, kv_heads, -1]), _size(op, k, 2), axis=0)
        weights = op.Reshape(weights, shape)
    y = op.MatMul(weights, op.Cast(v, to=FLOAT))
    if grouped:
        shape = op.Concat(
            op.Constant(value_ints=[0, heads]), _size(op, q, 2), op.Constant(value_ints=[width]), axis=0
        )
        y = op.Reshape(y, shape)
    return like(op, y, q)


def _causal(op: Any, q: Any, k: Any, window: int) -> Any:
    """[S, T] bool: query i stands at position i + T - S."""
    queries, keys = _size(op, q, 2), _size(op, k, 2)
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    key = op.Range(zero, op.Squeeze(keys), one)
    query = op.Unsqueeze(
        op.Range(op.Squeeze(op.Sub(keys, queries)), op.Squeeze(keys), one), op.Constant(value_ints=[1])
    )
    seen = op.LessOrEqual(key, query)
    if not window:
        return seen
    return op.And(seen, op.Greater(key, op.Sub(query, op.Constant(value_int=window))))


def like(op: Any, y: Any, x: Any) -> Any:
    """float32 `y` in the dtype of `x`."""
    return y if int(x.dtype) == FLOAT else op.Cast(y, to=int(x.dtype))


def _size(op: Any, tensor: Any, axis: int) -> Any:
    return op.Shape(tensor, start=axis, end=axis + 1)


def _zero(op: Any) -> Any:
    return op.Constant(value_float=0.0)


def _any(op: Any, mask: Any) -> Any:
    """[..., 1] bool: whether the last axis holds a True."""
    return op.Cast(op.ReduceMax(op.Cast(mask, to=FLOAT), op.Constant(value_ints=[-1]), keepdims=1), to=BOOL)
