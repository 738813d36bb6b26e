"""The second flavour of the graph: standard operators only, with the precision of every softmax stated.

For ONNX Runtime, OpenVINO and tools that know neither our functions nor our domain. The first flavour, with
the fused ops as nodes, is TensorRT's: its importer refuses a stated softmax precision, and without one the
standard leaves the softmax in the input's precision. Both point into the same weights.
"""

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from tblock.contract import DOMAIN
from tblock.errors import ExportError
from tblock.export.cast_policy import Narrow, inlined, narrow_nodes


def standard_graph(model: ModelProto) -> tuple[ModelProto, int]:
    """Make it, and hold both flavours to the cast policy.

    Args:
        model: the first flavour.

    Returns:
        The second, and how many attentions of the first have a softmax whose precision is not stated.

    Raises:
        ExportError: a node of either computes in less than float32; only such an attention may, in the first.
    """
    standard = inlined(model)
    found = narrow_nodes(standard)
    unstated = [node for node in found if node.op_type == "Attention"]
    _refuse([node for node in found if node not in unstated])
    for node in standard.graph.node:
        if node.op_type == "Attention":
            node.attribute.append(onnx.helper.make_attribute("softmax_precision", TensorProto.FLOAT))
        elif node.op_type == "Constant" and node.attribute[0].name == "value_float":
            # Some readers take the attribute for a double.
            value = onnx.numpy_helper.from_array(np.asarray(node.attribute[0].f, np.float32))
            node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", value))
    _refuse(narrow_nodes(standard) if unstated else [])
    imports = [entry for entry in standard.opset_import if entry.domain != DOMAIN]
    del standard.opset_import[:]
    standard.opset_import.extend(imports)
    return standard, len(unstated)


def _refuse(narrow: list[Narrow]) -> None:
    for node in narrow:
        raise ExportError(
            f"onnx: {node.op_type} {node.name} computes in {node.dtype}, wanted float32: sums, norms, "
            "softmax and activations never run in less"
        )
