"""The library inside TensorRT-RTX's own registry and ONNX parser, on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tblock.contract import DOMAIN, PLUGINS, OpRow

pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed (extra: tensorrt-rtx)")

_WORKER = Path(__file__).parent / "rtx_registry_worker.py"


def _run(plugins: Path, *models: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_WORKER), str(plugins), *map(str, models)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def _model(
    row: OpRow, path: Path, element: int = TensorProto.FLOAT16, **attributes: float | int | str
) -> Path:
    """One node of ours, as the exporter writes it."""
    shared = {"plugin_version": str(row.version), "plugin_namespace": DOMAIN}
    values = {a.name: a.examples[0] for a in row.attributes} | attributes
    ports = [
        [
            helper.make_tensor_value_info(p.name, element, ["B", 64] if p.dims.startswith("...") else [64])
            for p in side
        ]
        for side in (row.inputs, row.outputs)
    ]
    kept = {k: v for k, v in values.items() if v is not None}
    node = helper.make_node(
        row.onnx_name,
        [p.name for p in row.inputs],
        [p.name for p in row.outputs],
        domain=DOMAIN,
        **shared,
        **kept,
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, row.version)]
    graph = helper.make_graph([node], "one_node", *ports)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_plugin_registry_lists_the_creators(plugin_library: Path) -> None:
    done = _run(plugin_library)
    assert done.returncode == 0, done.stderr
    wanted = [[r.onnx_name, str(r.version), [a.name for a in r.attributes]] for r in PLUGINS]
    assert json.loads(done.stdout.splitlines()[0]) == wanted


@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("row", PLUGINS, ids=lambda row: row.name)
def test_plugin_is_created_by_the_onnx_parser(
    row: OpRow, element: int, plugin_library: Path, tmp_path: Path
) -> None:
    done = _run(plugin_library, _model(row, tmp_path / "model.onnx", element))
    assert f"Successfully created plugin: {row.onnx_name}" in done.stdout


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"eps": 0.0}, "field eps: 0.000000: must be finite and above 0"),
        ({"eps": 1}, "field eps: field type"),
        ({"eps": None}, "field eps: missing"),
        ({"weight_offset": float("nan")}, "field weight_offset: nan: must be finite"),
    ],
    ids=["zero", "int", "missing", "nan-offset"],
)
def test_plugin_bad_field_is_named_by_the_onnx_parser(
    attributes: dict, message: str, plugin_library: Path, tmp_path: Path
) -> None:
    row = PLUGINS[0]
    done = _run(plugin_library, _model(row, tmp_path / "model.onnx", **attributes))
    assert f"{row.onnx_name}: {message}" in done.stdout + done.stderr
    assert "Successfully created plugin" not in done.stdout
