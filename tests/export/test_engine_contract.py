"""The file says what a plugin needs, stock ONNX Runtime runs it, and the way taken is asserted."""

from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from tblock.contract import DOMAIN, PLUGINS
from tblock.errors import ArtifactError, ExportError, TblockError
from tblock.export.engine import fusion as engine_fusion
from tblock.export.engine.onnx import read_onnx
from tests.export import engine_models as models

CASES = [(dtype, opset) for dtype in ("float32", "float16") for opset in (18, 23)]


@pytest.mark.parametrize(("dtype", "opset"), CASES)
def test_exported_nodes_carry_what_a_plugin_needs(dtype: str, opset: int) -> None:
    path = models.exported(dtype=dtype, opset=opset) / "model.onnx"
    rows = {row.onnx_name: row for row in PLUGINS}
    nodes = [n for n in onnx.load(path, load_external_data=False).graph.node if n.domain == DOMAIN]
    assert len(nodes) == 3
    for node in nodes:
        found = {a.name: a for a in node.attribute}
        assert found["plugin_namespace"].s == b"tblock"
        assert found["plugin_version"].s == str(rows[node.op_type].version).encode()
        if "RMSNorm" in node.op_type:
            assert found["eps"].type == AttributeProto.FLOAT
            # The file holds float32: equal to the config's as far as that goes.
            assert abs(found["eps"].f - models.EPS) < 1e-12
    facts = read_onnx(path)
    assert facts.fused == models.FUSED
    assert facts.plugin_versions == dict.fromkeys(models.FUSED, "1")
    assert len(facts.fused_nodes) == 3
    assert [p.name for p in facts.data] == ["weights.safetensors"]


@pytest.mark.parametrize(("dtype", "opset"), CASES)
def test_file_with_bodies_runs_in_stock_onnxruntime(dtype: str, opset: int) -> None:
    path = models.exported(dtype=dtype, opset=opset) / "model.onnx"
    for batch, seq in ((1, 1), (3, 7)):
        verdict = models.verdict_of(path, dtype, batch, seq)
        assert verdict.passed, verdict.reason


def _norm(**attributes: object) -> onnx.NodeProto:
    whole = {"plugin_version": "1", "plugin_namespace": "tblock", "eps": 1e-6, "weight_offset": 0.0}
    kept = {name: value for name, value in {**whole, **attributes}.items() if value is not None}
    return helper.make_node("TblockRMSNorm", ["x", "x"], ["y"], name="n", domain="tblock", **kept)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"plugin_version": None}, "TblockRMSNorm n has no plugin_version"),
        ({"plugin_namespace": None}, "TblockRMSNorm n has no plugin_namespace"),
        ({"eps": None}, "TblockRMSNorm n: attribute eps must be a float"),
        ({"eps": 1}, "TblockRMSNorm n: attribute eps must be a float"),
        ({"weight_offset": "0"}, "TblockRMSNorm n: attribute weight_offset must be a float"),
    ],
)
def test_node_without_what_a_plugin_needs_is_refused(attributes: dict, message: str, tmp_path: Path) -> None:
    path = models.small(tmp_path / "m.onnx", [_norm(**attributes)])
    with pytest.raises(TblockError, match=message) as caught:
        read_onnx(path)
    assert type(caught.value) is ExportError


def test_fused_nodes_inside_functions_are_counted(tmp_path: Path) -> None:
    inner = helper.make_function(
        "local",
        "Pair",
        ["x"],
        ["y"],
        [_norm_into("x", "a"), _norm_into("a", "y")],
        [helper.make_opsetid("tblock", 1)],
    )
    call = helper.make_node("Pair", ["x"], ["y"], domain="local")
    path = models.small(tmp_path / "m.onnx", [call], functions=(inner,))
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("local", 1))
    onnx.save(model, path)
    assert read_onnx(path).fused == {"TblockRMSNorm": 2}


def _norm_into(source: str, target: str) -> onnx.NodeProto:
    node = _norm()
    node.input[:] = [source, source]
    node.output[:] = [target]
    return node


def _network(*layers: tuple[str, str]) -> SimpleNamespace:
    made = [SimpleNamespace(name=name, type=SimpleNamespace(name=kind)) for name, kind in layers]
    return SimpleNamespace(num_layers=len(made), get_layer=made.__getitem__)


FUSED = {"TblockRMSNorm": 2}
NODES = ("norm_0", "norm_1")


def test_way_taken_is_asserted_after_parsing() -> None:
    both = _network(("norm_0", "PLUGIN_V3"), ("mm", "MATRIX_MULTIPLY"), ("norm_1", "PLUGIN_V3"))
    none = _network(("norm_0", "REDUCE"), ("norm_1", "REDUCE"))
    assert engine_fusion.check_taken(both, "plugin", FUSED, NODES, "t") == 2
    assert engine_fusion.check_taken(none, "native", FUSED, NODES, "t") == 0


def test_way_not_taken_names_the_node() -> None:
    one = _network(("norm_0", "PLUGIN_V3"), ("norm_1", "REDUCE"))
    with pytest.raises(
        ExportError, match="1 plugin layers for 2 fused nodes; the parser took the body of norm_1"
    ):
        engine_fusion.check_taken(one, "plugin", FUSED, NODES, "tensorrt 10.13")
    with pytest.raises(ExportError, match="--fusion native, but layer norm_0 is a plugin"):
        engine_fusion.check_taken(one, "native", FUSED, NODES, "tensorrt 10.13")


def test_library_registers_and_another_version_is_refused(plugin_library: Path) -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    versions = {str(row.onnx_name): str(row.version) for row in PLUGINS}
    engine_fusion.register(trt, trt.Builder(logger), plugin_library, versions, "t")
    message = "t: the graph asks for plugin TblockRMSNorm version 7, .* has version 1; build it again"
    with pytest.raises(ExportError, match=message):
        engine_fusion.register(trt, trt.Builder(logger), plugin_library, {"TblockRMSNorm": "7"}, "t")
    with pytest.raises(ExportError, match=r"plugin TblockOther version 1, .* has none"):
        engine_fusion.register(trt, trt.Builder(logger), plugin_library, {"TblockOther": "1"}, "t")


def test_library_that_is_none_is_refused(tmp_path: Path) -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    path = tmp_path / "libnothing.so"
    path.write_bytes(b"\x7fELF")
    with pytest.raises(ExportError, match=r"the plugin library .*libnothing\.so does not load"):
        engine_fusion.register(trt, builder, path, {}, "t")


def test_tensor_whose_length_is_wrong_is_refused(tmp_path: Path) -> None:
    path = models.copied(models.exported(), tmp_path)
    model = onnx.load(path, load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL)
    next(e for e in tensor.external_data if e.key == "length").value = "4"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=f"damaged, {tensor.name} has 4 bytes in weights.safetensors"):
        read_onnx(path)
