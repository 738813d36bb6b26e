"""Each fused op's body in standard ONNX, as one node in stock ONNX Runtime, against the op in float64."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

from tblock import ops  # noqa: F401  (registers torch.ops.tblock)
from tblock.contract import DOMAIN, PLUGINS, OpRow
from tblock.dtypes import DTYPES
from tblock.export import onnx_bodies, onnx_schema
from tblock.runtimes.verdict import Verdict, judge

ROWS, WIDTH = 7, 60


def _field_sets(row: OpRow) -> list[dict[str, Any]]:
    count = max((len(a.examples) for a in row.attributes), default=1)
    return [{a.name: a.examples[i % len(a.examples)] for a in row.attributes} for i in range(count)]


def _model(row: OpRow, dtype: str, opset: int, fields: dict[str, Any]) -> bytes:
    def ends(ports: Any) -> list[onnx.ValueInfoProto]:
        shapes = [[ROWS, WIDTH] if p.dims.startswith("...") else [WIDTH] for p in ports]
        element = DTYPES[dtype].onnx
        return [helper.make_tensor_value_info(p.name, element, s) for p, s in zip(ports, shapes, strict=True)]

    node = helper.make_node(
        str(row.onnx_name),
        [p.name for p in row.inputs],
        [p.name for p in row.outputs],
        domain=DOMAIN,
        **fields,
        **onnx_schema.plugin_attributes(row),
    )
    graph = helper.make_graph([node], "one_node", ends(row.inputs), ends(row.outputs))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, row.version)]
    body = onnx_bodies.functions({str(row.onnx_name)}, opset)
    model = helper.make_model(graph, opset_imports=opsets, functions=body, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _verdicts(row: OpRow, dtype: str, opset: int) -> list[Verdict]:
    """Of every output, for every example of the attributes; one row's squares overflow float16."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for fields in _field_sets(row):
        shapes = [(ROWS, WIDTH) if p.dims.startswith("...") else (WIDTH,) for p in row.inputs]
        given = [torch.randn(s, generator=generator).to(getattr(torch, dtype)) for s in shapes]
        given[0][1] *= 400
        given[0][2] *= 1e-2
        op = getattr(torch.ops.tblock, row.name)
        eager, exact = op(*given, **fields), op(*(t.double() for t in given), **fields)
        session = onnxruntime.InferenceSession(_model(row, dtype, opset, fields))
        feeds = {p.name: t.numpy() for p, t in zip(row.inputs, given, strict=True)}
        got = session.run(None, feeds)
        several = isinstance(eager, tuple)
        for y, e, x in zip(got, eager if several else [eager], exact if several else [exact], strict=True):
            assert isinstance(y, np.ndarray)
            found.append(judge(output=y, reference=x.numpy(), eager=e.numpy(), inputs=None, dtype=dtype))
    return found


CASES = [(row, dtype, opset) for row in PLUGINS for dtype in ("float32", "float16") for opset in (18, 23)]


@pytest.mark.parametrize(
    ("row", "dtype", "opset"), CASES, ids=lambda value: getattr(value, "name", str(value))
)
def test_body_of_op_gives_its_float64_values(row: OpRow, dtype: str, opset: int) -> None:
    for verdict in _verdicts(row, dtype, opset):
        assert verdict.passed, verdict.reason


BROKEN = {
    "rms_norm": ("Add (wide_weight, offset)", "Sub (wide_weight, offset)"),
    "add_rms_norm": ("Add (x, residual)", "Sub (x, residual)"),
    "swiglu": ("Sigmoid (wide_gate)", "Sigmoid (wide_up)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_twin_of_the_body_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = onnx_bodies._bodies
    assert BROKEN[name][0] in shipped(23)[name]
    monkeypatch.setattr(
        onnx_bodies, "_bodies", lambda opset: {name: shipped(opset)[name].replace(*BROKEN[name])}
    )
    row = next(row for row in PLUGINS if row.name == name)
    assert not all(verdict.passed for verdict in _verdicts(row, "float16", 23))
