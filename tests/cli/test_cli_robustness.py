"""What must not look like a verdict: crashes, nothing that ran, other people's graphs, a killed export."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from tblock import preset
from tblock.export.trial import try_engine
from tblock.manifest import read_artifact
from tblock.ranges import Range
from tests.artifacts import export
from tests.cli.outcome import Run

SHAPES = ("--minShapes", "x:1x1x64", "--optShapes", "x:1x8x64", "--maxShapes", "x:2x16x64")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny artifact with an engine."""
    folder = tmp_path_factory.mktemp("robust") / "tiny"
    export(preset("tiny"), folder, to=("onnx", "tensorrt-rtx"), batch=Range(1, 1, 4), seq=Range(1, 16, 64))
    return folder


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(tiny, tmp_path / "copy")


def test_fault_of_ours_exits_70_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr("tblock.manifest.read_artifact", lambda folder: 1 / 0)
    done = run("inspect", tiny)
    assert done.code == 70
    assert done.complaint == [
        "tblock: internal error, please report it: ZeroDivisionError: division by zero; "
        "TBLOCK_TRACEBACK=1 shows where"
    ]


@pytest.mark.parametrize("verb", ["check", "bench"])
def test_nothing_that_ran_is_no_pass(verb: str, run: Run, tiny: Path) -> None:
    done = run(verb, tiny, "--runtime", "onnxruntime", "--provider", "cuda")
    assert done.code == 3
    assert "PASS" not in done.out


def test_engine_of_another_graph_does_not_become_the_artifacts(run: Run, copy: Path) -> None:
    before = (copy / "manifest.json").read_bytes()
    model = onnx.load(copy / "model.onnx")
    onnx.save(model, copy / "other.onnx")
    done = run("build", copy / "other.onnx", "--runtime", "tensorrt-rtx", *SHAPES)
    assert done.code == 0, done.err
    assert (copy / "manifest.json").read_bytes() == before
    refused = run(
        "build", copy / "other.onnx", "--runtime", "tensorrt-rtx", *SHAPES, "-o", copy / "model.rtx.engine"
    )
    assert (refused.code, len(refused.complaint)) == (2, 1)
    assert "is a file of the artifact there" in refused.complaint[0]


def test_rebuilt_engine_becomes_the_artifacts(run: Run, copy: Path) -> None:
    done = run("build", copy, "--runtime", "tensorrt-rtx", *SHAPES)
    assert done.code == 0, done.err
    artifact = read_artifact(copy)
    assert artifact.manifest.targets["tensorrt-rtx"]["profiles"] == [
        {"x": [[1, 1, 64], [1, 8, 64], [2, 16, 64]]}
    ]
    assert artifact.path(artifact.manifest.targets["tensorrt-rtx"]["file"]).is_file()


def test_engine_on_trial_is_judged_as_what_it_is(tiny: Path) -> None:
    """Without a GPU the trial must end at the driver, not at a target entry that is only half there."""
    from tblock.export.engine.report import EngineReport

    artifact = read_artifact(tiny)
    entry = artifact.manifest.targets["tensorrt-rtx"]
    report = EngineReport.from_dict({k: v for k, v in entry.items() if k not in ("files", "graph")})
    tried = try_engine(artifact, artifact.path("model.rtx.engine"), report, None)
    assert tried.judged
    assert tried.correct or "no NVIDIA driver" in tried.detail


def test_engine_on_trial_without_golden_data_is_not_judged(tmp_path: Path, tiny: Path) -> None:
    from tblock.export.engine.report import EngineReport

    bare = tmp_path / "bare"
    export(preset("tiny"), bare, golden=False, seq=Range(1, 16, 64))
    entry = read_artifact(tiny).manifest.targets["tensorrt-rtx"]
    report = EngineReport.from_dict({k: v for k, v in entry.items() if k not in ("files", "graph")})
    assert not try_engine(read_artifact(bare), tiny / "model.rtx.engine", report, None).judged


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_export_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from tblock.cli import main; main()",
        "export",
        "--preset",
        "llama-3.2-1b",
    ]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "out")], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "capture" not in process.stderr.readline():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_reader_that_goes_away_is_no_error() -> None:
    verb = f'"{sys.executable}" -c "from tblock.cli import main; main()" list presets'
    shell = f"{verb} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "0"
    assert done.stderr == ""
