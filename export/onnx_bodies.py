"""Function bodies of the fused ops in standard ONNX: what a runtime without our kernels computes.

Each casts to float32 first and rounds once at the end (the contract's cast policy), whatever the dtype.
"""

import onnx
import onnx.parser

from tblock.contract import DOMAIN, PLUGINS, OpRow
from tblock.export.onnx_schema import plugin_attributes

_RMS_23 = """
    offset = Constant <value_float: float = @weight_offset> ()
    wide_weight = Cast <to = 1> (weight)
    gain = Add (wide_weight, offset)
    wide = Cast <to = 1> (x)
    normal = RMSNormalization <axis = -1, epsilon: float = @eps, stash_type = 1> (wide, gain)
    y = CastLike (normal, x)
"""
_RMS_18 = """
    offset = Constant <value_float: float = @weight_offset> ()
    wide_weight = Cast <to = 1> (weight)
    gain = Add (wide_weight, offset)
    wide = Cast <to = 1> (x)
    two = Constant <value_float = 2.0> ()
    square = Pow (wide, two)
    axes = Constant <value_ints = [-1]> ()
    mean = ReduceMean <keepdims = 1> (square, axes)
    epsilon = Constant <value_float: float = @eps> ()
    variance = Add (mean, epsilon)
    deviation = Sqrt (variance)
    normal = Div (wide, deviation)
    scaled = Mul (normal, gain)
    y = CastLike (scaled, x)
"""
_SWIGLU = """
    wide_gate = Cast <to = 1> (gate)
    wide_up = Cast <to = 1> (up)
    sigmoid = Sigmoid (wide_gate)
    silu = Mul (wide_gate, sigmoid)
    product = Mul (silu, wide_up)
    y = CastLike (product, gate)
"""


def _bodies(opset: int) -> dict[str, str]:
    """Name of a row to its body; RMSNormalization exists from opset 23 on."""
    rms = _RMS_23 if opset >= 23 else _RMS_18
    return {"rms_norm": rms, "add_rms_norm": _add_then(rms), "swiglu": _SWIGLU}


def _add_then(rms: str) -> str:
    return "    sum = Add (x, residual)\n" + rms.replace("(x)", "(sum)").replace(", x)", ", sum)")


def function(row: OpRow, opset: int) -> onnx.FunctionProto:
    """The body of one fused op.

    Args:
        row: with an ONNX name.
        opset: of the model.
    """
    attributes = ", ".join([*(a.name for a in row.attributes), *plugin_attributes(row)])
    inputs, outputs = (", ".join(p.name for p in ports) for ports in (row.inputs, row.outputs))
    return onnx.parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>\n'
        f"{row.onnx_name} <{attributes}> ({inputs}) => ({outputs}) {{\n{_bodies(opset)[row.name]}\n}}"
    )


def functions(used: set[str], opset: int) -> list[onnx.FunctionProto]:
    """The bodies of the fused ops a graph uses, by op_type."""
    return [function(row, opset) for row in PLUGINS if row.onnx_name in used]
