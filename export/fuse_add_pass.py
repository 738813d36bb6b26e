"""Graph pass: an Add in front of an op of ours becomes one node where the contract has an op that fuses both.

Requires: an onnx_ir model with nodes of the contract; shapes on the values around them, as torch.onnx writes
(where a shape is not known, or the Add might broadcast, nothing is done).
Ensures: the same values come out (the node's function body is Add, then the fused op on the rounded sum);
later users of the sum read the node's first output; graph outputs keep their names; the bodies of all ops of
ours in use are in the model, and no others. `FuseAddPass.fired` is how many pairs it replaced, by op.

Why: one pass over memory instead of two, and half as many layers, where a kernel of ours runs the node.
"""

from collections.abc import Iterable

import onnx_ir as ir

from tblock.contract import DOMAIN, PLUGINS, OpRow
from tblock.export import onnx_bodies
from tblock.export.onnx_schema import plugin_attributes

_SAME_SHAPE = {"Cast", "Identity", "Neg", "Relu", "Sigmoid", "Tanh", "Gelu", "Erf"}
"""Standard operators whose output has the shape of their first input."""

_OURS_SAME_SHAPE = {
    str(row.onnx_name) for row in PLUGINS if all(port.dims == row.inputs[0].dims for port in row.outputs)
}
"""The same of ours."""


class FuseAddPass(ir.passes.InPlacePass):
    """Add(a, b) -> sum, Op(sum, ...) -> y becomes AddOp(a, b, ...) -> sum, y.

    Attributes:
        fired: pairs replaced by the last call, by the name of the fusing op.
    """

    def __init__(self) -> None:
        self._fusing = {op.onnx_name: row for row in PLUGINS for op in PLUGINS if row.fuses == op.name}
        self.fired = {row.name: 0 for row in self._fusing.values()}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run on a model, in place."""
        self.fired = dict.fromkeys(self.fired, 0)
        sizes = _Sizes(model.graph)
        for node in list(model.graph):
            row = self._fusing.get(node.op_type) if node.domain == DOMAIN else None
            add = node.inputs[0].producer() if row and node.inputs[0] is not None else None
            if row is not None and add is not None and _fits(add, node, sizes):
                _replace(model.graph, add, node, row)
                self.fired[row.name] += 1
        modified = any(self.fired.values())
        if modified:
            # The op's weight may be a constant that stands after the Add.
            model.graph.sort()
            _set_bodies(model)
        return ir.passes.PassResult(model, modified=modified)


def _fits(add: ir.Node, node: ir.Node, sizes: "_Sizes") -> bool:
    if (add.domain, add.op_type) != ("", "Add") or add.graph is not node.graph:
        return False
    for weight in node.inputs[1:]:
        source = weight.producer() if weight is not None else None
        if weight is None or not (source is None or source.op_type == "Constant"):
            return False
    first, second = add.inputs
    return sizes.equal(first, second)


def _replace(graph: ir.Graph, add: ir.Node, node: ir.Node, row: OpRow) -> None:
    assert row.onnx_name is not None
    attributes = [node.attributes[a.name] for a in row.attributes]
    attributes += [ir.AttrString(name, value) for name, value in plugin_attributes(row).items()]
    fused = ir.Node(
        DOMAIN,
        row.onnx_name,
        inputs=[*add.inputs, *node.inputs[1:]],
        attributes=attributes,
        num_outputs=len(row.outputs),
        name=f"{node.name}_add" if node.name else None,
    )
    ir.convenience.replace_nodes_and_values(
        graph,
        insertion_point=add,
        old_nodes=[add, node],
        new_nodes=[fused],
        old_values=[add.outputs[0], *node.outputs],
        new_values=fused.outputs,
    )


def _set_bodies(model: ir.Model) -> None:
    ours = {row.onnx_name for row in PLUGINS}
    used = {node.op_type for node in model.graph if node.domain == DOMAIN and node.op_type in ours}
    for identifier in [i for i in model.functions if i[0] == DOMAIN and i[1] in ours - used]:
        del model.functions[identifier]
    missing = used - {i[1] for i in model.functions if i[0] == DOMAIN}
    for proto in onnx_bodies.functions(missing, model.opset_imports[""]):
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function


class _Sizes:
    """Which dimension names are one size, as far as the graph's own operators prove it.

    torch.onnx names dimensions inside a graph by its own symbols, while the ends carry ours.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._parent: dict[str, str] = {}
        for node in graph:
            first = node.inputs[0] if node.inputs else None
            output = node.outputs[0] if node.outputs else None
            if first is None or output is None or first.shape is None or output.shape is None:
                continue
            known = _OURS_SAME_SHAPE if node.domain == DOMAIN else _SAME_SHAPE
            if (
                node.domain in ("", DOMAIN)
                and node.op_type in known
                and len(first.shape) == len(output.shape)
            ):
                self._join(first.shape, output.shape)
            elif (node.domain, node.op_type) == ("", "MatMul") and _rank(node.inputs[1]) == 2:
                self._join(list(first.shape)[:-1], list(output.shape)[:-1])

    def equal(self, first: ir.Value | None, second: ir.Value | None) -> bool:
        """Whether two values certainly have one shape."""
        one, other = _shape(first), _shape(second)
        if one is None or other is None or len(one) != len(other):
            return False
        pairs = zip(one, other, strict=True)
        return all(self._name(a) is not None and self._name(a) == self._name(b) for a, b in pairs)

    def _join(self, first: Iterable[object], second: Iterable[object]) -> None:
        for a, b in zip(first, second, strict=True):
            one, other = self._name(a), self._name(b)
            if one is not None and other is not None and one != other:
                self._parent[one] = other

    def _name(self, dim: object) -> str | None:
        name = str(dim) if isinstance(dim, int) else getattr(dim, "value", None)
        while name in self._parent:
            name = self._parent[name]
        return name


def _shape(value: ir.Value | None) -> ir.Shape | None:
    """Of a value, or of our op's input where shape inference left the output without one."""
    if value is None or value.shape is not None:
        return None if value is None else value.shape
    producer = value.producer()
    if producer is None or producer.domain != DOMAIN or producer.op_type not in _OURS_SAME_SHAPE:
        return None
    return _shape(producer.inputs[0])


def _rank(value: ir.Value | None) -> int | None:
    """Of a value, or of the weight that it transposes (torch.onnx leaves that one without a shape)."""
    if value is None:
        return None
    if value.shape is not None:
        return len(value.shape)
    producer = value.producer()
    return _rank(producer.inputs[0]) if producer is not None and producer.op_type == "Transpose" else None
