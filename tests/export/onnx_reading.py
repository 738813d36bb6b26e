"""Reading an exported ONNX file: its nodes, constants and types, and where precision could be lost."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from tblock.manifest import Artifact


def graph_of(artifact: Artifact) -> ModelProto:
    """The file as it lies, without its external data."""
    return onnx.load(artifact.folder / "model.onnx", load_external_data=False)


def op_counts(model: ModelProto) -> Counter[str]:
    """op_type to count in the main graph, with the domain where it is not the standard one."""
    return Counter(f"{n.domain}.{n.op_type}".lstrip(".") for n in model.graph.node)


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Of the graph and of every function body."""
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def attribute(node: NodeProto, name: str) -> object:
    """Value of an attribute; None where the node has none of that name."""
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def constants(model: ModelProto) -> Iterator[np.ndarray]:
    """Every constant in the file: Constant nodes and initializers that lie inside."""
    for node in all_nodes(model):
        if node.op_type == "Constant":
            for a in node.attribute:
                if not a.ref_attr_name:
                    value = onnx.helper.get_attribute_value(a)
                    yield numpy_helper.to_array(value) if a.name == "value" else np.asarray(value)
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            yield numpy_helper.to_array(tensor)


def element_types(model: ModelProto) -> set[int]:
    """Every tensor element type that appears: values, initializers, constants, casts, function bodies."""
    typed = onnx.shape_inference.infer_shapes(model, data_prop=False).graph
    found = {v.type.tensor_type.elem_type for v in (*typed.value_info, *typed.input, *typed.output)}
    found |= {t.data_type for t in typed.initializer}
    for node in all_nodes(model):
        found |= {a.t.data_type for a in node.attribute if a.type == onnx.AttributeProto.TENSOR}
        if node.op_type == "Cast":
            found.add(int(str(attribute(node, "to"))))
    return found


def locations(model: ModelProto) -> set[str]:
    """Files that the graph's external data lies in."""
    return {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }


def size_of(path: Path) -> int:
    """Bytes."""
    return path.stat().st_size
