"""What is added without touching the rest: a runtime (one file and one row), tensors of any name."""

import ast
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tblock.runtimes
from tblock.golden import GoldenCase, read_golden, write_golden
from tblock.manifest import GOLDEN, NAME, WEIGHTS, Manifest, TensorSpec
from tblock.ranges import Range
from tblock.runtimes import RUNTIMES, bench, check, load
from tests.runtimes import artifact_edits as edits

TOY = """
from tblock.runtimes.ort import OnnxRuntimeRunner

class Toy(OnnxRuntimeRunner):
    name = "toy"

    def __init__(self, artifact, *, toy_level=0, threads=None):
        super().__init__(artifact, threads=threads)
        self.details["toy_level"] = toy_level
"""
ROW = """
from tblock.runtimes.table import RUNTIMES, RuntimeRow

RUNTIMES["toy"] = RuntimeRow(
    runner="toy_runtime:Toy", target="onnx", package="numpy", extra="toy", options=("threads", "toy_level")
)
"""
USE = """
import json, sys
from tblock.cli.doctor import extra_of
from tblock.runtimes import RUNTIMES, bench, check, load

folder = sys.argv[1]
rows = check(folder, toy_level=2)
(timed,) = bench(folder, ["toy"], seconds=0.01, threads=1)
print(json.dumps({
    "of_onnx": [name for name, row in RUNTIMES.items() if row.target == "onnx"],
    "check": {row.runtime: [row.status, row.details.get("toy_level")] for row in rows},
    "bench": [timed.status, timed.median_s > 0],
    "loaded": load(folder, "toy", toy_level=3).details["toy_level"],
    "brings": extra_of("numpy"),
}))
"""


def test_runtime_is_one_file_and_one_row(odd16: Path, tmp_path: Path) -> None:
    """A second runtime of the onnx target, known to nothing but its row, in parent and child alike."""
    (tmp_path / "toy_runtime.py").write_text(TOY)
    (tmp_path / "sitecustomize.py").write_text(ROW)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", USE, str(odd16)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "of_onnx": ["onnxruntime", "toy"],
        "check": {"onnxruntime": ["PASS", None], "toy": ["PASS", 2]},
        "bench": ["PASS", True],
        "loaded": 3,
        "brings": "toy",
    }


OWNERS = {"table.py", *(f"{row.runner.partition(':')[0].rpartition('.')[2]}.py" for row in RUNTIMES.values())}
"""Files that may name runtimes: the table, and each runner's own."""


def runtime_names_in(source: str) -> set[str]:
    """Constants that are a runtime's name or package; `eager` is also a word of golden data."""
    words = ({*RUNTIMES} | {row.package for row in RUNTIMES.values()}) - {"eager"}
    found = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return {word for word in found if isinstance(word, str)} & words


def test_no_other_file_of_the_room_knows_a_runtime_by_its_name() -> None:
    assert runtime_names_in('if name == "tensorrt": pass') == {"tensorrt"}
    # engine_file is the half of the TensorRT runners that looks at bytes.
    files = [p for p in Path(tblock.runtimes.__file__).parent.glob("*.py") if p.name not in OWNERS]
    found = {p.name: names for p in files if (names := runtime_names_in(p.read_text(encoding="utf-8")))}
    assert set(found) <= {"engine_file.py"}, found


DIMS = ("B", "S", 4)
TENSORS = {
    "inputs": (
        TensorSpec(name="hidden", dims=DIMS, dtype="float32"),
        TensorSpec(name="shift", dims=("B", 4), dtype="float32"),
        TensorSpec(name="alive", dims=("B", "S"), dtype="bool"),
    ),
    "outputs": (
        TensorSpec(name="moved", dims=DIMS, dtype="float32", residual="hidden"),
        TensorSpec(name="narrow", dims=("B", "S", 2), dtype="float32", live="alive"),
    ),
}


def compute(hidden: np.ndarray, shift: np.ndarray, alive: np.ndarray) -> dict[str, np.ndarray]:
    moved = hidden + shift[:, None, :]
    return {"moved": moved, "narrow": moved[..., :2] * alive[..., None]}


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """An artifact of three inputs and two outputs, none of them x or y."""
    kinds = {"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL}
    values = {
        side: [helper.make_tensor_value_info(t.name, kinds[t.dtype], t.dims) for t in specs]
        for side, specs in TENSORS.items()
    }
    constants = {"one": [1], "last": [-1], "zero": [0], "two": [2], "two_axis": [2]}
    nodes = [
        helper.make_node("Unsqueeze", ["shift", "one"], ["shift_BSD"]),
        helper.make_node("Add", ["hidden", "shift_BSD"], ["moved"]),
        helper.make_node("Slice", ["moved", "zero", "two", "two_axis"], ["cut"]),
        helper.make_node("Cast", ["alive"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "last"], ["factor"]),
        helper.make_node("Mul", ["cut", "factor"], ["narrow"]),
    ]
    data = [helper.make_tensor(name, TensorProto.INT64, [1], value) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "named", values["inputs"], values["outputs"], data)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    rng, cases = np.random.default_rng(0), []
    for batch, seq in ((1, 3), (2, 5)):
        inputs = {
            "hidden": rng.standard_normal((batch, seq, 4), np.float32),
            "shift": rng.standard_normal((batch, 4), np.float32),
            "alive": np.arange(seq) < np.arange(seq - 1, seq - 1 + batch)[:, None],
        }
        wide = {name: a.astype(np.float64) if a.dtype != bool else a for name, a in inputs.items()}
        cases.append(GoldenCase(inputs, compute(**wide), compute(**inputs)))
    write_golden(tmp_path / GOLDEN, cases)
    (tmp_path / WEIGHTS).write_bytes(b"")
    manifest = Manifest(
        tblock="0", created="2026-01-02T03:04:05Z", tools={}, configs=(edits.ODD,), dtype="float32",
        source={"kind": "config", "name": "", "layers": [0, 1]}, parameters=1,
        ranges={"B": Range(1, 1, 4), "S": Range(1, 3, 8)},
        targets={"onnx": {
            "files": ["model.onnx"], "opset": 23, "ir_version": 10, "attention": "none",
            "attention_reason": "-", "fused": {}, "nodes": 3,
        }},
        files={key: {"size": 0, "sha256": "0" * 64} for key in ("model.onnx", GOLDEN, WEIGHTS)}, **TENSORS,
    )  # fmt: skip
    (tmp_path / NAME).write_text(manifest.to_json(), encoding="utf-8")
    return edits.reseal(tmp_path)


def test_artifact_of_other_tensors_runs_is_judged_and_is_timed(named: Path) -> None:
    run, (case, _) = load(named, "onnxruntime"), read_golden(named / GOLDEN)
    found = run(case.inputs["hidden"], shift=case.inputs["shift"], alive=case.inputs["alive"])
    assert list(found) == ["moved", "narrow"]
    assert np.array_equal(found["narrow"], case.eager["narrow"])
    (row,) = check(named)
    assert (row.status, row.shapes) == ("PASS", ("B1 S3", "B2 S5")), row
    rows = bench(named, ["onnxruntime"], shapes=[{}, {"S": 4}], seconds=0.01, threads=1)
    assert [row.status for row in rows] == ["PASS", "PASS"], rows


@pytest.mark.parametrize("output", ["moved", "narrow"])
def test_one_wrong_output_of_several_fails_and_is_named(named: Path, output: str) -> None:
    """The broken twin: the golden data of a graph that shifts one output the other way."""

    def turned(case: GoldenCase) -> GoldenCase:
        other = {"reference": {}, "eager": {}}
        for kind, arrays in (("reference", case.reference), ("eager", case.eager)):
            other[kind] = {**arrays, output: -arrays[output]}
        return dataclasses.replace(case, **other)

    write_golden(named / GOLDEN, [turned(case) for case in read_golden(named / GOLDEN)])
    (row,) = check(edits.reseal(named))
    assert row.status == "FAIL"
    assert output in row.where
