"""Sums, norms and softmax run in float32, by structure, in both flavours; and what is said of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from tblock import ffn
from tblock.errors import ExportError
from tblock.export import attention_form, onnx_bodies
from tblock.export.cast_policy import Narrow, inlined, narrow_nodes
from tblock.export.engine.attention_kernels import AttentionChoice, AttentionPlan, softmax_precision
from tblock.export.engine.builder import EngineOptions, build_from_onnx
from tblock.manifest import GRAPH, STANDARD, Artifact
from tests.export import onnx_reading as reading

Exported = Callable[..., Artifact]

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "float32": ({}, {"opset": 23}),
    "float16": ({}, {"opset": 23, "dtype": "float16"}),
    "float16-18": ({}, {"opset": 18, "dtype": "float16"}),
    "float16-layernorm-qknorm": (
        {"norm": "layernorm", "norm_bias": True, "qk_norm": "per_head"},
        {"opset": 23, "dtype": "float16"},
    ),
    "float16-experts": ({"num_experts": 3, "experts_per_token": 2}, {"opset": 23, "dtype": "float16"}),
    "float16-mask": ({"sliding_window": 5}, {"opset": 23, "dtype": "float16", "padding_mask": True}),
    "float16-gelu": ({"ffn": "gelu"}, {"opset": 23, "dtype": "float16"}),
    "float16-geglu-tanh": ({"ffn": "geglu_tanh"}, {"opset": 18, "dtype": "float16"}),
    "float16-relu2": ({"ffn": "relu2"}, {"opset": 23, "dtype": "float16"}),
    "float16-router": (
        {"num_experts": 3, "experts_per_token": 1, "router": "sigmoid"},
        {"opset": 23, "dtype": "float16"},
    ),
    "float16-soft-cap": ({"attn_soft_cap": 2.0}, {"opset": 23, "dtype": "float16"}),
}


EACH = [pytest.param(name, marks=[] if name == "float16" else [pytest.mark.exhaustive]) for name in CASES]


def flavour(artifact: Artifact, name: str) -> onnx.ModelProto:
    return onnx.load(artifact.folder / name, load_external_data=False)


@pytest.mark.parametrize("name", EACH)
def test_standard_graph_states_float32_everywhere_and_has_no_functions(name: str, exported: Exported) -> None:
    changes, options = CASES[name]
    artifact = exported(options=options, **changes)
    model = flavour(artifact, STANDARD)
    assert narrow_nodes(model) == []
    assert not model.functions
    assert {node.domain for node in model.graph.node} == {""}
    assert [(o.domain, o.version) for o in model.opset_import] == [("", options["opset"])]
    assert reading.locations(model) == {"weights.safetensors"}
    for node in model.graph.node:
        if node.op_type == "Attention":
            assert reading.attribute(node, "softmax_precision") == TensorProto.FLOAT


@pytest.mark.parametrize("name", EACH)
def test_graph_for_tensorrt_leaves_only_the_softmax_of_attention_open(name: str, exported: Exported) -> None:
    changes, options = CASES[name]
    artifact = exported(options=options, **changes)
    found = narrow_nodes(inlined(flavour(artifact, GRAPH)))
    entry = artifact.manifest.targets["onnx"]
    half = options.get("dtype") == "float16" and entry["attention"] == "attention-23"
    assert [(n.op_type, n.dtype) for n in found] == [("Attention", "FLOAT16")] * half
    assert entry["softmax"] == "float32"
    assert ("softmax_precision" in entry["softmax_reason"]) == half
    # TensorRT's importer refuses a stated one.
    nodes = [n for n in flavour(artifact, GRAPH).graph.node if n.op_type == "Attention"]
    assert all(reading.attribute(n, "softmax_precision") is None for n in nodes)


@pytest.mark.parametrize("name", EACH)
def test_both_flavours_give_the_same_bits_in_onnxruntime(name: str, exported: Exported) -> None:
    changes, options = CASES[name]
    artifact = exported(options=options, **changes)
    dtype = np.float16 if options.get("dtype") == "float16" else np.float32
    feeds: dict[str, np.ndarray] = {
        "x": np.random.default_rng(0).standard_normal((2, 7, artifact.manifest.configs[0].dim)).astype(dtype)
    }
    if options.get("padding_mask"):
        feeds["padding_mask"] = np.arange(14).reshape(2, 7) != 7
    outputs = [
        onnxruntime.InferenceSession(artifact.folder / file, providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
        for file in (GRAPH, STANDARD)
    ]
    assert np.array_equal(outputs[0][0], outputs[1][0])


WIDE = "wide = Cast <to = 1> (x)"
TWINS: dict[str, tuple[int, str, str, str]] = {
    "18-no-cast": (18, WIDE, "wide = Identity (x)", "Pow .* computes in FLOAT16"),
    "23-half": (23, WIDE, "wide = Cast <to = 10> (x)", "RMSNormalization.* inconsistent type"),
    "23-stash": (23, "stash_type = 1", "stash_type = 10", "RMSNormalization .* computes in FLOAT16"),
}


def lower_again(exported: Exported, opset: int, **changes: Any) -> None:
    """Export anew, with whatever was broken."""
    from tests.artifacts import export
    from tests.export.odd_block import ODD, SMALL

    folder = exported(options={"opset": opset}).folder.parent / "twin"
    export(ODD.replace(**changes), folder, **{**SMALL, "opset": opset, "dtype": "float16", "force": True})


@pytest.mark.parametrize("twin", TWINS)
def test_norm_body_without_its_float32_is_refused(
    twin: str, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By value alone this is invisible: ONNX Runtime on CPU computes the float16 chain in float32."""
    opset, wanted, broken, message = TWINS[twin]
    text = getattr(onnx_bodies, f"_RMS_{opset}")
    assert wanted in text
    monkeypatch.setattr(onnx_bodies, f"_RMS_{opset}", text.replace(wanted, broken))
    with pytest.raises(ExportError, match=message):
        lower_again(exported, opset)


def test_softmax_in_half_is_refused(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    real = attention_form._decomposed

    def narrow(op: Any, q: Any, k: Any, v: Any, *more: Any) -> Any:
        monkeypatch.setattr(attention_form, "FLOAT", 10)
        try:
            return real(op, q, k, v, *more)
        finally:
            monkeypatch.setattr(attention_form, "FLOAT", 1)

    monkeypatch.setattr(attention_form, "_decomposed", narrow)
    with pytest.raises(ExportError, match=r"Softmax .* computes in FLOAT16, wanted float32"):
        lower_again(exported, 18)


def test_activation_in_half_is_refused(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffn, "wide_dtype", lambda x: x.dtype)
    with pytest.raises(ExportError, match=r"(Gelu|Erf) .* computes in FLOAT16, wanted float32"):
        lower_again(exported, 18, ffn="gelu")


def test_attention_without_the_statement_is_found(exported: Exported) -> None:
    changes, options = CASES["float16"]
    model = flavour(exported(options=options, **changes), STANDARD)
    (node,) = (n for n in model.graph.node if n.op_type == "Attention")
    (stated,) = (a for a in node.attribute if a.name == "softmax_precision")
    node.attribute.remove(stated)
    assert narrow_nodes(model) == [Narrow("Attention", node.name, "FLOAT16")]
    stated.i = TensorProto.BFLOAT16
    node.attribute.append(stated)
    assert narrow_nodes(model) == [Narrow("Attention", node.name, "BFLOAT16")]


@pytest.mark.parametrize(
    ("dtype", "width", "form"), [("float16", 6, "decomposed"), ("float32", 6, "attention-23")]
)
def test_head_width_without_a_kernel_keeps_its_softmax_in_float32(
    dtype: str, width: int, form: str, exported: Exported
) -> None:
    artifact = exported(options={"opset": 23, "dtype": dtype}, head_dim=width, rope_dim=width)
    entry = artifact.manifest.targets["onnx"]
    assert entry["attention"] == form
    assert narrow_nodes(inlined(flavour(artifact, GRAPH))) == []
    if form == "decomposed":
        assert "no float16 kernel for head width 6" in entry["attention_reason"]


@pytest.mark.parametrize(
    ("softmaxes", "choices", "wanted"),
    [
        ({"FLOAT"}, [], "float32"),
        (set(), [("dedicated", "HALF")], "kernel"),
        (set(), [("decomposable", "HALF")], "float16"),
        (set(), [("decomposable", "FLOAT")], "float32"),
        ({"HALF", "FLOAT"}, [], "float16"),
        ({"BF16"}, [("dedicated", "HALF")], "kernel"),
    ],
)
def test_engines_softmax_is_told_from_the_parsed_network(
    softmaxes: set[str], choices: list[tuple[str, str]], wanted: str
) -> None:
    plan = AttentionPlan([AttentionChoice("a", kernel, "", dtype) for kernel, dtype in choices], [])
    found, why = softmax_precision(softmaxes, plan)
    assert found == wanted
    assert why


def test_tensorrts_importer_refuses_the_statement_and_takes_the_graph_without(
    exported: Exported, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="not installed: pip install 'tblock[tensorrt-rtx]'")
    changes, options = CASES["float16"]
    folder = exported(options=options, **changes).folder
    quiet = EngineOptions(progress=False)
    with pytest.raises(ExportError, match=r"softmax precision is not supported"):
        build_from_onnx(folder / STANDARD, flavour="tensorrt-rtx", output=tmp_path / "a", options=quiet)
    report = build_from_onnx(folder / GRAPH, flavour="tensorrt-rtx", output=tmp_path / "b", options=quiet)
    assert report.softmax == "kernel"
