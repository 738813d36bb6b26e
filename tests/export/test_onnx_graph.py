"""The exported ONNX file by structure: nodes, names, axes, precision, place of weights."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tblock import BlockConfig, Stack, preset
from tblock.contract import DOMAIN, PLUGINS, RMS_NORM
from tblock.errors import ExportError
from tblock.export import attention_form, onnx_bodies, onnx_model
from tblock.manifest import Artifact
from tblock.runtimes import load
from tblock.runtimes.parity import judge_runner
from tblock.weights import random_block_weights
from tests.artifacts import export
from tests.export import onnx_reading as reading

Exported = Callable[..., Artifact]
OPSETS = [18, 23]
LAYERNORM: dict[str, Any] = {"norm": "layernorm", "norm_bias": True, "norm_position": "post"}
GRAPHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Changes of the config, options of the export.
    "opset-23": ({}, {"opset": 23}),
    "opset-18": ({}, {"opset": 18}),
    "float16-23": ({}, {"opset": 23, "dtype": "float16"}),
    "float16-18": ({}, {"opset": 18, "dtype": "float16"}),
    "masked-23": ({}, {"opset": 23, "padding_mask": True, "position_ids": True}),
    "masked-18": ({}, {"opset": 18, "padding_mask": True, "position_ids": True}),
    "layernorm": (LAYERNORM, {"dtype": "float16"}),
    "partial-rope": ({"sliding_window": 5, "rope_dim": 10}, {"opset": 23}),
}


@pytest.fixture(params=GRAPHS)
def artifact(request: pytest.FixtureRequest, exported: Exported) -> Artifact:
    changes, options = GRAPHS[request.param]
    return exported(options=options, **changes)


def test_graph_ends_are_named_and_have_symbolic_axes(artifact: Artifact) -> None:
    graph = reading.graph_of(artifact).graph
    for values, specs in ((graph.input, artifact.manifest.inputs), (graph.output, artifact.manifest.outputs)):
        assert [v.name for v in values] == [s.name for s in specs]
        for value, spec in zip(values, specs, strict=True):
            dims = value.type.tensor_type.shape.dim
            assert [d.dim_param or d.dim_value for d in dims] == list(spec.dims)


def test_graph_opset_and_ir_version_are_as_the_manifest_says(artifact: Artifact) -> None:
    model, target = reading.graph_of(artifact), artifact.manifest.targets["onnx"]
    opsets = {o.domain: o.version for o in model.opset_import}
    assert opsets == {"": target["opset"], DOMAIN: 1}
    assert model.ir_version == target["ir_version"] <= 10
    assert all({o.domain: o.version for o in f.opset_import}[""] == target["opset"] for f in model.functions)


def test_graph_has_no_double_and_no_branch(artifact: Artifact) -> None:
    model = reading.graph_of(artifact)
    assert TensorProto.DOUBLE not in reading.element_types(model)
    assert not {n.op_type for n in reading.all_nodes(model)} & {"If", "Loop", "Scan"}


def test_graph_weights_lie_once_in_the_weights_file_by_bare_name(artifact: Artifact) -> None:
    model = reading.graph_of(artifact)
    outside = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    places = {tuple(e.value for e in t.external_data if e.key in ("offset", "length")) for t in outside}
    assert reading.locations(model) == {"weights.safetensors"}
    assert len(places) == len(outside) == len(random_block_weights(artifact.manifest.configs[0], 0))
    assert sum(np.prod(t.dims) for t in outside) == artifact.manifest.parameters
    # What is inside are constants and RoPE tables, far below the weights.
    assert reading.size_of(artifact.folder / "model.onnx") < artifact.manifest.parameters


def test_graph_passes_the_full_checker(artifact: Artifact) -> None:
    onnx.checker.check_model(str(artifact.folder / "model.onnx"), full_check=True)


def test_graph_has_a_body_for_every_fused_op_and_no_other(artifact: Artifact) -> None:
    model = reading.graph_of(artifact)
    fused = {n.op_type for n in model.graph.node if n.domain == DOMAIN}
    assert {f.name for f in model.functions} == fused
    counts = {name: reading.op_counts(model)[f"{DOMAIN}.{name}"] for name in fused}
    assert artifact.manifest.targets["onnx"]["fused"] == counts
    assert artifact.manifest.targets["onnx"]["nodes"] == len(model.graph.node)


def test_graph_nodes_carry_what_tensorrt_needs_to_find_a_plugin(artifact: Artifact) -> None:
    for node in reading.graph_of(artifact).graph.node:
        if node.domain == DOMAIN:
            row = next(row for row in PLUGINS if row.onnx_name == node.op_type)
            strings = {"plugin_version": str(row.version).encode(), "plugin_namespace": DOMAIN.encode()}
            assert {name: reading.attribute(node, name) for name in strings} == strings
            kinds = {a.name: a.type for a in node.attribute if a.name not in strings}
            assert kinds == {a.name: onnx.AttributeProto.FLOAT for a in row.attributes}


@pytest.mark.parametrize(
    ("changes", "options", "fused", "standard"),
    [
        ({}, {"opset": 23}, {"TblockRMSNorm": 1, "TblockAddRMSNorm": 1, "TblockSwiGLU": 1}, {"Attention": 1}),
        ({}, {"opset": 18}, {"TblockRMSNorm": 1, "TblockAddRMSNorm": 1, "TblockSwiGLU": 1}, {"Softmax": 1}),
        (
            LAYERNORM,
            {"dtype": "float16"},
            {"TblockSwiGLU": 1},
            {"LayerNormalization": 2, "Attention": 1},
        ),
    ],
    ids=["opset-23", "opset-18", "layernorm"],
)
def test_graph_holds_the_counted_nodes(
    changes: Any, options: Any, fused: dict[str, int], standard: dict[str, int], exported: Exported
) -> None:
    artifact = exported(options=options, **changes)
    assert artifact.manifest.targets["onnx"]["fused"] == fused
    counts = reading.op_counts(reading.graph_of(artifact))
    assert {name: counts[name] for name in standard} == standard
    assert counts["MatMul"] + counts["Gemm"] == 7 + 2 * standard.get("Softmax", 0)


@pytest.mark.parametrize("opset", OPSETS)
def test_attention_form_is_chosen_and_explained(opset: int, exported: Exported) -> None:
    target = exported(options={"opset": opset}).manifest.targets["onnx"]
    expected = "attention-23" if opset >= 23 else "decomposed"
    assert target["attention"] == expected
    assert target["attention_reason"]


def test_attention_form_of_a_soft_cap_is_decomposed_at_opset_23(exported: Exported) -> None:
    artifact = exported(options={"opset": 23}, attn_soft_cap=2.0)
    assert artifact.manifest.targets["onnx"]["attention"] == "decomposed"
    assert "soft cap" in artifact.manifest.targets["onnx"]["attention_reason"]
    assert reading.op_counts(reading.graph_of(artifact))["Attention"] == 0


@pytest.mark.parametrize(
    ("changes", "options", "flag", "masked"),
    [
        ({}, {"opset": 23}, 1, False),
        ({"sliding_window": 5, "rope_dim": 10}, {"opset": 23}, 0, True),
        ({}, {"opset": 23, "padding_mask": True, "position_ids": True}, 0, True),
    ],
    ids=["plain", "window", "padding"],
)
def test_attention_causal_flag_is_used_only_without_mask_and_window(
    changes: Any, options: Any, flag: int, masked: bool, exported: Exported
) -> None:
    """Its alignment is upper-left: beside a mask or window it would be wrong, or refused."""
    graph = reading.graph_of(exported(options=options, **changes)).graph
    node = next(n for n in graph.node if n.op_type == "Attention")
    assert reading.attribute(node, "is_causal") in ((1,) if flag else (0, None))
    assert (len(node.input) > 3) == masked
    assert len(node.output) == 1


def test_layernorm_in_float16_is_between_casts_to_float32(exported: Exported) -> None:
    changes, options = GRAPHS["layernorm"]
    model = reading.graph_of(exported(options=options, **changes))
    producers = {o: n for n in model.graph.node for o in n.output}
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            assert reading.attribute(node, "stash_type") in (None, 1)
            for name in node.input:
                cast = producers[name]
                assert (cast.op_type, reading.attribute(cast, "to")) == ("Cast", TensorProto.FLOAT)


@pytest.mark.parametrize(
    ("changes", "options", "eps"),
    [
        ({}, {"opset": 23}, 1e-6),
        ({"norm_eps": 1e-12}, {"opset": 18, "golden": False}, 1e-12),
        ({"norm": "layernorm", "norm_bias": True, "norm_eps": 1e-12}, {"golden": False}, 1e-12),
    ],
    ids=["rmsnorm-23", "rmsnorm-18", "layernorm"],
)
def test_epsilon_in_the_file_is_the_configs_to_1e_12(
    changes: Any, options: Any, eps: float, exported: Exported
) -> None:
    """The attribute is a float32, the nearest to the config's float64."""
    nodes = reading.graph_of(exported(options=options, **changes)).graph.node
    found = [reading.attribute(n, "eps") for n in nodes if "RMSNorm" in n.op_type]
    found += [reading.attribute(n, "epsilon") for n in nodes if n.op_type == "LayerNormalization"]
    assert len(found) == 2
    assert all(value is not None and abs(float(str(value)) - eps) <= 1e-12 for value in found)


@pytest.mark.parametrize("opset", OPSETS)
def test_body_takes_its_epsilon_from_the_node(opset: int) -> None:
    body = onnx_bodies.function(RMS_NORM, opset)
    references = {a.ref_attr_name for n in body.node for a in n.attribute if a.ref_attr_name}
    assert references == {a.name for a in RMS_NORM.attributes}


def test_layer_used_twice_stores_its_weights_once(tmp_path: Any) -> None:
    config = BlockConfig(dim=60, num_heads=6, head_dim=12, ffn_dim=100, max_position=64, init_std=0.2)
    stack = Stack([config, config, config])
    stack.share([0, 0, 2])
    artifact = export(stack, tmp_path / "a")
    model = reading.graph_of(artifact)
    outside = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    places = {e.value for t in outside for e in t.external_data if e.key == "offset"}
    assert len({t.name.split(".")[1] for t in outside}) == 2
    assert len(places) == len(outside) == 2 * len(random_block_weights(config, 0))
    assert artifact.manifest.parameters == 2 * config.parameter_count()
    assert reading.size_of(artifact.folder / "weights.safetensors") < 2.1 * 4 * config.parameter_count()
    assert artifact.manifest.source["tied"]["layers.1.attn.q.weight"] == "layers.0.attn.q.weight"
    assert reading.op_counts(model)["Attention"] == 3
    assert judge_runner(load(artifact.folder, "onnxruntime", threads=1), artifact).passed


def test_stack_of_two_layers_stores_each(exported: Exported, tmp_path: Any) -> None:
    artifact = export(exported().manifest.configs[0].replace(num_layers=2), tmp_path / "a", layers="all")
    assert artifact.manifest.parameters == 2 * artifact.manifest.configs[0].parameter_count()
    assert len(artifact.manifest.configs) == 2
    assert "tied" not in artifact.manifest.source
    assert reading.op_counts(reading.graph_of(artifact))["tblock.TblockSwiGLU"] == 2


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda m: m.opset_imports.update({"": 22}), "onnx: asked for opset 23, torch wrote 22"),
        (
            lambda m: setattr(next(iter(m.graph)), "op_type", "Loop"),
            r"onnx: node .* is Loop: a branch was traced",
        ),
        (
            lambda m: setattr(m.graph.inputs[0], "dtype", onnx_model.ir.DataType.DOUBLE),
            "onnx: x is float64; the graph must stay in the block's dtype and float32",
        ),
    ],
    ids=["opset", "branch", "double"],
)
def test_promise_that_the_graph_breaks_is_an_export_error(
    break_it: Any, message: str, exported: Exported
) -> None:
    model = onnx_model.ir.load(exported(options={"opset": 23}).folder / "model.onnx")
    onnx_model._promise(model, 23)
    break_it(model)
    with pytest.raises(ExportError, match=f"^{message}"):
        onnx_model._promise(model, 23)


def test_translation_failure_is_one_line_without_colours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("the very reason\nand a page of advice")

    monkeypatch.setattr(attention_form, "emit", broken)
    with pytest.raises(ExportError) as caught:
        export(preset("tiny"), tmp_path / "a")
    assert str(caught.value) == "onnx: torch.onnx.export failed: the very reason"
    assert not re.search(r"[\n\x1b]", str(caught.value))
    assert list(tmp_path.iterdir()) == []
