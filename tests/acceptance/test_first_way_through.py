"""What a user does first: layers to every target, judged on every runtime of this machine."""

from pathlib import Path

import numpy as np
import pytest

from tblock import Stack, preset
from tblock.checkpoints import open_checkpoint
from tblock.golden import read_golden
from tblock.manifest import GOLDEN, Artifact
from tblock.runtimes import check
from tests.artifacts import export

LAYERS = (0, 12, 13, 29)
HERE = ("eager", "compile", "aoti", "onnxruntime")
"""Runtimes of a machine without a GPU."""


@pytest.fixture(scope="module")
def artifacts(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Artifact]:
    """Float32 artifacts of the four layers, every target this machine builds."""
    folder = tmp_path_factory.mktemp("smollm2")
    to = ("onnx", "aoti", "tensorrt-rtx")
    return {n: export(smollm2_gguf, folder / f"layer{n}", layer=n, to=to) for n in LAYERS}


@pytest.mark.exhaustive
@pytest.mark.parametrize("layer", LAYERS)
def test_smollm2_float32_layer_passes_on_every_runtime(artifacts: dict[int, Artifact], layer: int) -> None:
    rows = {row.runtime: row for row in check(artifacts[layer].folder, HERE)}
    assert {name: rows[name].status for name in HERE} == dict.fromkeys(HERE, "PASS"), rows


@pytest.mark.exhaustive
@pytest.mark.parametrize("layer", LAYERS)
def test_smollm2_engine_is_built_and_runs_or_needs_a_gpu(artifacts: dict[int, Artifact], layer: int) -> None:
    artifact = artifacts[layer]
    assert artifact.path("model.rtx.engine").stat().st_size > artifact.manifest.parameters * 4 * 0.9
    (row,) = check(artifact.folder, ["tensorrt-rtx"])
    assert row.status in ("UNAVAILABLE", "PASS"), row


def test_smollm2_float16_layer_12_is_within_budget_at_24900(smollm2_gguf: Path, tmp_path: Path) -> None:
    artifact = export(smollm2_gguf, tmp_path / "out", layer=12, dtype="float16", to=("onnx", "tensorrt-rtx"))
    cases = read_golden(artifact.path(GOLDEN))
    assert max(np.abs(case.reference["y"]).max() for case in cases) > 20_000
    (row,) = check(artifact.folder, ["onnxruntime"])
    assert row.passed, row


def test_smollm2_stack_of_two_layers_equals_one_after_the_other(smollm2_gguf: Path, tmp_path: Path) -> None:
    stack = export(smollm2_gguf, tmp_path / "stack", layers="12:14", to=("onnx",))
    # The first norm has no residual add before it; the other three are fused with theirs.
    fused = {"TblockAddRMSNorm": 3, "TblockRMSNorm": 1, "TblockSwiGLU": 2}
    assert stack.manifest.targets["onnx"]["fused"] == fused
    assert stack.manifest.parameters == 2 * open_checkpoint(smollm2_gguf).config(12).parameter_count()
    (row,) = check(stack.folder, ["onnxruntime"])
    assert row.passed, row


def test_layer_used_twice_passes_in_eager_and_in_onnx_runtime(tmp_path: Path) -> None:
    stack = Stack(preset("tiny"))
    stack.share([0, 0])
    artifact = export(stack, tmp_path / "shared")
    assert artifact.manifest.parameters == preset("tiny").parameter_count()
    rows = check(artifact.folder, ["eager", "onnxruntime"])
    assert [row.status for row in rows] == ["PASS", "PASS"], rows
