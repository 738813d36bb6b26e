"""Residual Add and RMSNorm become one node: how often (structure) and with the same values (numbers)."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from tblock.export import onnx_bodies, onnx_schema
from tblock.export.fuse_add_pass import FuseAddPass
from tests.export import engine_models as models

CASES = [(dtype, opset) for dtype in ("float32", "float16") for opset in (18, 23)]


def _fuse(source: Path, target: Path) -> int:
    model = ir.load(source)
    fuse = FuseAddPass()
    result = fuse(model)
    fired = fuse.fired["add_rms_norm"]
    assert result.modified == (fired > 0)
    ir.save(model, target)
    onnx.checker.check_model(str(target), full_check=True)
    return fired


def _fused_ops(path: Path) -> Counter[str]:
    model = onnx.load(path, load_external_data=False)
    used = Counter(n.op_type for n in model.graph.node if n.domain == "tblock")
    assert {f.name for f in model.functions} == set(used)
    return used


@pytest.mark.parametrize(("dtype", "opset"), CASES)
def test_block_has_one_pair_and_gives_the_same_values(dtype: str, opset: int, tmp_path: Path) -> None:
    path = models.exported_unfused(tmp_path, dtype=dtype, opset=opset)
    assert _fused_ops(path) == {"TblockRMSNorm": 2, "TblockSwiGLU": 1}
    target = tmp_path / "fused.onnx"
    assert _fuse(path, target) == 1
    assert _fused_ops(target) == models.FUSED
    before, after = (onnxruntime.InferenceSession(str(p)) for p in (path, target))
    for batch, seq in ((1, 1), (3, 7), (2, 33)):
        x = np.random.default_rng(seq).standard_normal((batch, seq, models.DIM)).astype(dtype)
        np.testing.assert_array_equal(before.run(None, {"x": x})[0], after.run(None, {"x": x})[0])
    assert models.verdict_of(target, dtype, 2, 7).passed
    assert _fuse(target, tmp_path / "again.onnx") == 0


def _graph(folder: Path, text: str, *, opset: int = 23) -> Path:
    """A graph from ONNX text: inputs a, b [B,S,8], c [8], w [8]; outputs as in the text."""
    attributes = 'plugin_version = "1", plugin_namespace = "tblock", eps = 1e-5, weight_offset = 1.0'
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "tblock": 1]>\n' + text.replace("ATTR", attributes)
    )
    rows = onnx_schema.PLUGINS
    used = {n.op_type for n in model.graph.node} & {str(row.onnx_name) for row in rows}
    model.functions.extend(onnx_bodies.functions(used, opset))
    onnx_schema.opset()
    model = onnx.shape_inference.infer_shapes(model)
    path = folder / "graph.onnx"
    onnx.save(model, path)
    return path


HEAD = "g (float16[B,S,8] a, float16[B,S,8] b, float16[8] c, float16[8] w)"
SUM_USED = (
    HEAD
    + """ => (float16[B,S,8] y, float16[B,S,8] s, float16[B,S,8] z) {
    s = Add (ORDER)
    n = tblock.TblockRMSNorm <ATTR> (s, w)
    y = Sigmoid (n)
    z = Relu (s)
}"""
)


@pytest.mark.parametrize("order", ["a, b", "b, a"])
@pytest.mark.parametrize("opset", [18, 23])
def test_sum_stays_usable_and_keeps_its_name_in_either_order(order: str, opset: int, tmp_path: Path) -> None:
    path = _graph(tmp_path, SUM_USED.replace("ORDER", order), opset=opset)
    assert _fuse(path, tmp_path / "fused.onnx") == 1
    (node,) = [n for n in onnx.load(tmp_path / "fused.onnx").graph.node if n.domain == "tblock"]
    assert (node.op_type, list(node.input)) == ("TblockAddRMSNorm", [*order.split(", "), "w"])
    assert list(node.output) == ["s", "n"]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes["eps"] == np.float32(1e-5)
    assert attributes["weight_offset"] == 1.0
    assert (attributes["plugin_namespace"], attributes["plugin_version"]) == (b"tblock", b"1")
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 3, 8)).astype(np.float16) for n in "ab"}
    feeds |= {n: rng.standard_normal(8).astype(np.float16) for n in "cw"}
    runs = [onnxruntime.InferenceSession(str(p)).run(None, feeds) for p in (path, tmp_path / "fused.onnx")]
    for before, after in zip(*runs, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("body", "fired"),
    [
        ("s = Add (a, c) n = tblock.TblockRMSNorm <ATTR> (s, w) y = Sigmoid (n)", 0),
        ("s = Mul (a, b) n = tblock.TblockRMSNorm <ATTR> (s, w) y = Sigmoid (n)", 0),
        ("s = Add (a, b) v = Add (w, c) n = tblock.TblockRMSNorm <ATTR> (s, v) y = Sigmoid (n)", 0),
        ("n = tblock.TblockRMSNorm <ATTR> (a, w) y = Add (n, b)", 0),
        ("s = Add (a, a) y = tblock.TblockRMSNorm <ATTR> (s, w)", 1),
        (
            "s = Add (a, b) n = tblock.TblockRMSNorm <ATTR> (s, w) m = tblock.TblockRMSNorm <ATTR> (s, c) "
            "y = Add (n, m)",
            1,
        ),
        (
            "s = Add (a, b) n = tblock.TblockRMSNorm <ATTR> (s, w) t = Add (s, n) "
            "y = tblock.TblockRMSNorm <ATTR> (t, c)",
            2,
        ),
    ],
    ids=["broadcast", "not-add", "computed-weight", "norm-first", "same-twice", "two-norms", "chain"],
)
def test_pattern_fires_as_often_as_it_should(body: str, fired: int, tmp_path: Path) -> None:
    path = _graph(tmp_path, HEAD + " => (float16[B,S,8] y) {" + body + "}")
    assert _fuse(path, tmp_path / "fused.onnx") == fired
    assert _fused_ops(tmp_path / "fused.onnx")["TblockAddRMSNorm"] == fired
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal((2, 3, 8)).astype(np.float16) for n in "ab"}
    feeds |= {n: rng.standard_normal(8).astype(np.float16) for n in "cw"}
    runs = [onnxruntime.InferenceSession(str(p)).run(None, feeds)[0] for p in (path, tmp_path / "fused.onnx")]
    np.testing.assert_array_equal(*runs)


def test_dimensions_that_are_not_proven_equal_are_left_alone(tmp_path: Path) -> None:
    path = _graph(
        tmp_path,
        "g (float16[B,S,8] a, float16[B,Q,8] b, float16[8] w) => (float16[B,T,8] y) "
        "{ s = Add (a, b) y = tblock.TblockRMSNorm <ATTR> (s, w) }",
    )
    assert _fuse(path, tmp_path / "fused.onnx") == 0
