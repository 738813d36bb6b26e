"""Where a graph would leave the cast policy: sums, norms, softmax and activations not provably in float32.

By structure, not by value: ONNX Runtime on a CPU computes most float16 nodes in float32 and hides a lost
cast, a GPU does not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, TensorProto

_POINTWISE = ("Elu", "Erf", "Exp", "Gelu", "Log", "Sigmoid", "Softplus", "Swish", "Tanh")
_SUMS = (
    "CumSum", "Einsum", "GlobalAveragePool", "InstanceNormalization", "LogSoftmax", "LpNormalization",
    "MeanVarianceNormalization", "Pow", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax", "Sqrt",
)  # fmt: skip
"""Operators, with those above, that compute in the type they read."""

_STATED = {
    "Attention": ("softmax_precision", None),
    "GroupNormalization": ("stash_type", TensorProto.FLOAT),
    "LayerNormalization": ("stash_type", TensorProto.FLOAT),
    "RMSNormalization": ("stash_type", TensorProto.FLOAT),
}
"""Operators that say in an attribute what they compute in, and its default; None: the type they read."""

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_WHOLE = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
_WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Narrow:
    """A node that may compute in less than float32.

    Attributes:
        op_type, name: of the node.
        dtype: what it computes in, by ONNX's name; `unknown` where the graph does not say.
    """

    op_type: str
    name: str
    dtype: str


def inlined(model: ModelProto) -> ModelProto:
    """The graph with its function bodies in place of the nodes that name them; weights stay outside."""
    return onnx.inliner.inline_local_functions(model)


def narrow_nodes(model: ModelProto) -> list[Narrow]:
    """Every node that leaves the policy.

    Args:
        model: without functions (`inlined`); external data is not read.
    """
    typed = onnx.shape_inference.infer_shapes(model, data_prop=False).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*typed.value_info, *typed.input, *typed.output)}
    types |= {t.name: t.data_type for t in typed.initializer}
    return [found for node in typed.node for found in _look_at(node, types)]


def _look_at(node: NodeProto, types: dict[str, int]) -> Iterator[Narrow]:
    if node.domain not in ("", "ai.onnx"):
        return
    if node.op_type in _STATED:
        name, default = _STATED[node.op_type]
        given = next((a.i for a in node.attribute if a.name == name), default)
    elif node.op_type in (*_SUMS, *_POINTWISE):
        given = None
    else:
        return
    computes = types.get(node.input[0], 0) if given is None else given
    if computes not in (*_WIDE, *_WHOLE):
        known = TensorProto.DataType.Name(computes) if computes in _NARROW else "unknown"
        yield Narrow(node.op_type, node.name, known)
