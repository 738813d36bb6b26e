"""Every family as exported: its ONNX file in ONNX Runtime, and the float16 file as a TensorRT-RTX engine.

Exported from the checkpoint that transformers saved, with padding mask and positions as inputs. ONNX Runtime
is judged twice: by the artifact's golden data (our block in float64) and by the family's own implementation.
Engines are built, not run: that needs a GPU.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tblock import Block, BlockConfig
from tblock.checkpoints import Checkpoint, from_torch_layer, open_checkpoint
from tblock.checkpoints.probe import LIMITS
from tblock.checkpoints.reference import FamilyLayer
from tblock.errors import ExportError
from tblock.export import onnx_translation
from tblock.manifest import Artifact
from tblock.ranges import Range
from tblock.runtimes import load
from tblock.runtimes.parity import judge_runner
from tblock.weights import fill
from tests.artifacts import export
from tests.families.family_cases import CASES, Case, randomize, save_model
from tests.families.family_inputs import LENGTHS, Layer, worst_error

RANGES: dict[str, Any] = {"batch": Range(1, 2, 3), "seq": Range(1, 7, max(LENGTHS))}


ONE_OF_A_KIND = ("llama", "qwen3_moe", "gemma3", "cohere", "gpt2", "bert")
"""Cases whose graphs differ in kind: norms, experts, windows, layouts, positions. Others are exhaustive."""


def every_case(*default: str) -> list[Any]:
    """All cases; those not named are exhaustive."""
    marks = {case.id: [] if case.id in default else [pytest.mark.exhaustive] for case in CASES}
    return [pytest.param(case, id=case.id, marks=marks[case.id]) for case in CASES]


@pytest.fixture
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Case, nn.Module, Checkpoint]:
    """A random model of the family, and the checkpoint transformers saved it as."""
    model = save_model(request.param, tmp_path / "model")
    return request.param, model, open_checkpoint(tmp_path / "model")


def distinct_layers(case: Case, checkpoint: Checkpoint) -> Sequence[int]:
    """One layer of each config: equal configs make equal graphs."""
    return sorted({checkpoint.config(layer): layer for layer in case.layers}.values())


def exported(source: Any, config: BlockConfig, folder: Path, **options: Any) -> Artifact:
    """A small export that takes a padding mask, and positions where there is RoPE."""
    return export(source, folder, padding_mask=True, position_ids=config.rope, **RANGES, **options)


def in_onnxruntime(artifact: Artifact) -> tuple[Layer, str]:
    """The artifact as a layer, and what its own check says against it ("" where it passes)."""
    runner = load(artifact.folder, "onnxruntime", threads=1)
    row = judge_runner(runner, artifact)
    names = [spec.name for spec in artifact.manifest.inputs]

    def layer(x_BSD: Tensor, live_BS: Tensor | None, positions_BS: Tensor | None) -> Tensor:
        batch, seq = x_BSD.shape[:2]
        if live_BS is None or positions_BS is None:
            live_BS = torch.ones(batch, seq, dtype=torch.bool)
            positions_BS = torch.arange(seq).repeat(batch, 1)
        rest = {"padding_mask": live_BS, "position_ids": positions_BS}
        y = runner(x_BSD.numpy(), **{name: t.numpy() for name, t in rest.items() if name in names})
        return torch.from_numpy(y)

    return layer, "" if row.passed else f"{row.status}: {row.reason}"


def note_onnxruntime(artifact: Artifact, theirs: Layer, family_report: Any, family: str, name: str) -> None:
    """Judge, note, assert."""
    layer, refusal = in_onnxruntime(artifact)
    error = worst_error(layer, theirs, artifact.manifest.configs[0].dim, torch.float32)
    passed = not refusal and error <= LIMITS["float32"]
    family_report.note(family, "onnxruntime", name, error=error, passed=passed)
    assert not refusal
    assert error <= LIMITS["float32"], f"{name}: {error:.2e} against the family's own"


def note_engine(
    source: Any, config: BlockConfig, folder: Path, family_report: Any, family: str, name: str, **layer: int
) -> None:
    """Build, note, and look at what was parsed: every reduction runs in float32."""
    wanted = {"to": ("tensorrt-rtx",), "dtype": "float16", "golden": False}
    try:
        artifact = exported(source, config, folder, **wanted, **layer)
    except ExportError:
        family_report.note(family, "tensorrt-rtx", name, error=None, passed=False)
        raise
    built = artifact.manifest.targets["tensorrt-rtx"]
    passed = set(built["reductions"]) <= {"FLOAT"}
    family_report.note(family, "tensorrt-rtx", name, error=None, passed=passed)
    assert passed, built["reductions"]
    assert (artifact.folder / built["files"][0]).stat().st_size > 10_000


@pytest.mark.parametrize("saved", every_case(*ONE_OF_A_KIND), indirect=True)
def test_exported_layer_in_onnxruntime_equals_transformers(saved, tmp_path: Path, family_report) -> None:
    case, model, checkpoint = saved
    for layer in distinct_layers(case, checkpoint):
        artifact = exported(checkpoint.path, checkpoint.config(layer), tmp_path / f"a{layer}", layer=layer)
        note_onnxruntime(artifact, FamilyLayer(model, layer), family_report, case.family, case.id)


@pytest.mark.parametrize("saved", every_case("qwen3_moe", "gemma3"), indirect=True)
def test_exported_layer_builds_as_a_float16_engine(saved, tmp_path: Path, family_report) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    case, _, checkpoint = saved
    for layer in distinct_layers(case, checkpoint):
        config, folder = checkpoint.config(layer), tmp_path / f"a{layer}"
        note_engine(checkpoint.path, config, folder, family_report, case.family, case.id, layer=layer)


@pytest.fixture(params=["pre-causal", "pre-bidirectional", "post-causal", "post-bidirectional"])
def torch_layer(request: pytest.FixtureRequest) -> tuple[str, Block, Layer]:
    """PyTorch's own encoder layer: case id, our block with its weights, the layer."""
    norm, attention = request.param.split("-")
    causal = attention == "causal"
    activation = "gelu" if causal else "relu"
    own = nn.TransformerEncoderLayer(
        45, 3, 77, activation=activation, norm_first=norm == "pre", batch_first=True
    ).eval()  # fmt: skip
    randomize(own, seed=3)
    config, weights = from_torch_layer(own, causal=causal, max_position=64)
    block = Block(config)
    fill(block, weights, dtype=torch.float32, where="torch")

    def theirs(x_BSD: Tensor, live_BS: Tensor | None, positions_BS: Tensor | None) -> Tensor:
        seq = x_BSD.shape[1]
        mask = torch.triu(torch.ones(seq, seq, dtype=torch.bool), 1) if causal else None
        return own(x_BSD, src_mask=mask, src_key_padding_mask=None if live_BS is None else ~live_BS)

    return f"torch_encoder-{request.param}", block, theirs


def test_exported_torch_layer_in_onnxruntime_equals_torch(torch_layer, tmp_path, family_report) -> None:
    name, block, theirs = torch_layer
    artifact = exported(block, block.config, tmp_path / "a")
    note_onnxruntime(artifact, theirs, family_report, "torch_encoder", name)


@pytest.mark.exhaustive
def test_exported_torch_layer_builds_as_a_float16_engine(torch_layer, tmp_path, family_report) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    name, block, _ = torch_layer
    note_engine(block, block.config, tmp_path / "a", family_report, "torch_encoder", name)


def test_exported_layer_with_its_rope_turned_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: the shipped translation rotates the other pairs."""
    case = next(case for case in CASES if case.id == "llama")
    model = save_model(case, tmp_path / "model")
    rope = onnx_translation._rope
    monkeypatch.setattr(onnx_translation, "_rope", lambda op, x, cos, sin, i: rope(op, x, cos, sin, 1 - i))
    checkpoint = open_checkpoint(tmp_path / "model")
    layer, refusal = in_onnxruntime(exported(checkpoint.path, checkpoint.config(0), tmp_path / "a", layer=0))
    assert refusal.startswith("FAIL")
    assert worst_error(layer, FamilyLayer(model, 0), 60, torch.float32) > 1000 * LIMITS["float32"]
