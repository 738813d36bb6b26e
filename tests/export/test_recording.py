"""Rebuilding an engine of an artifact: a kill at any moment, and two processes on one folder."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tblock import preset
from tblock.errors import ArtifactError, ConfigError, ExportError
from tblock.export import recording, staging
from tblock.export.engine.report import EngineReport
from tblock.export.recording import record_engine, record_verdicts
from tblock.manifest import Artifact, read_artifact
from tblock.ranges import Range
from tests.artifacts import export
from tests.conftest import Once

FLAVOUR = "tensorrt-rtx"
PASS = {"status": "PASS", "ratio": 0.1, "error": 1e-7, "eager_error": None, "where": "", "reason": ""}


@pytest.fixture
def artifact(once: Once, tmp_path: Path) -> Artifact:
    """A copy, with an engine."""
    made = once(
        "recorded", lambda folder: export(preset("tiny"), folder, to=("onnx", FLAVOUR), seq=Range(1, 8, 16))
    )
    return read_artifact(shutil.copytree(made, tmp_path / "a"))


RECORD = """
import dataclasses, os, signal, sys
from pathlib import Path
from tblock.export import recording
from tblock.export.engine.report import EngineReport
from tblock.manifest import read_artifact
def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
folder, at, content = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
entry = read_artifact(folder).manifest.targets["tensorrt-rtx"]
report = EngineReport.from_dict({k: v for k, v in entry.items() if k not in ("files", "graph")})
engine = folder / f".model.rtx.engine.{os.getpid()}.part"
engine.write_text(content)
replace = recording._replace
if at == "before-manifest": recording._replace = kill
if at == "after-manifest": recording._replace = lambda *a: (replace(*a), kill())
if at == "before-name": recording.os.replace = kill
recording.record_engine(read_artifact(folder), "tensorrt-rtx", report, engine)
"""


def record(folder: Path, at: str, content: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", RECORD, str(folder), at, content])


def engine_of(folder: Path) -> Path:
    artifact = read_artifact(folder)
    for name in artifact.manifest.files:
        artifact.path(name)
    return artifact.path(artifact.manifest.targets[FLAVOUR]["files"][0])


@pytest.mark.parametrize("at", ["before-name", "before-manifest", "after-manifest"])
def test_kill_9_while_recording_leaves_engine_and_manifest_that_belong_together(
    artifact: Artifact, at: str
) -> None:
    folder = artifact.folder
    old = engine_of(folder).read_bytes()
    assert record(folder, at, "new").wait() == -signal.SIGKILL
    assert engine_of(folder).read_bytes() == (b"new" if at == "after-manifest" else old)
    if at == "after-manifest":
        # The first engine's plain name could be a file of the user's, so it is named, not taken.
        with pytest.raises(ConfigError, match=r"holds model\.rtx\.engine, which is no file"):
            staging.check_output(folder, force=True)
        (folder / "model.rtx.engine").unlink()
    # What else it left is ours: the next engine sweeps it, and --force may replace the folder.
    staging.check_output(folder, force=True)
    assert record(folder, "", "next").wait() == 0
    assert engine_of(folder).read_bytes() == b"next"
    left = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    assert left == {*read_artifact(folder).manifest.files, "manifest.json"}


def test_two_processes_on_one_folder_take_turns(artifact: Artifact) -> None:
    folder = artifact.folder
    processes = [record(folder, "", text) for text in ("one", "two", "three", "four")]
    record_verdicts(artifact, {"onnxruntime": PASS})
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    assert engine_of(folder).read_bytes() in (b"one", b"two", b"three", b"four")
    assert read_artifact(folder).manifest.verdicts["onnxruntime"] == PASS
    assert {p.name for p in folder.iterdir()} == {*read_artifact(folder).manifest.files, "manifest.json"}


def test_twin_that_keeps_the_engines_name_is_caught(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine under its old name, killed before the manifest: the digest no longer fits."""
    entry = artifact.manifest.targets[FLAVOUR]
    report = EngineReport.from_dict({k: v for k, v in entry.items() if k not in ("files", "graph")})
    fresh = artifact.folder / ".model.rtx.engine.1.part"
    fresh.write_text("new")
    old = engine_of(artifact.folder)

    def over_the_old(source: Path, target: Path) -> None:
        shutil.copyfile(source, old)
        source.rename(target)

    monkeypatch.setattr(recording.os, "replace", over_the_old)
    monkeypatch.setattr(recording, "_replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        record_engine(artifact, FLAVOUR, report, fresh)
    with pytest.raises(ArtifactError):
        engine_of(artifact.folder)


def test_unlisted_engine_of_a_user_is_not_ours(artifact: Artifact) -> None:
    assert record(artifact.folder, "", "next").wait() == 0
    for name in ("mine.engine", "model.rtx.engine"):
        (artifact.folder / name).write_text("his")
        with pytest.raises(ConfigError, match=rf"holds {name}"):
            staging.check_output(artifact.folder, force=True)
        (artifact.folder / name).unlink()


def test_artifact_that_took_the_place_of_the_known_one_gets_nothing(
    artifact: Artifact, tmp_path: Path
) -> None:
    """Another export with --force while an engine was built, or a check ran: of another block."""
    folder = artifact.folder
    shutil.rmtree(folder)
    export(preset("tiny").replace(causal=False), folder, seq=Range(1, 8, 16), verify=False)
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(ExportError, match=r"a: another export took its place; nothing was recorded in it"):
        record_verdicts(artifact, {"onnxruntime": PASS})
    report = EngineReport.from_dict(
        {k: v for k, v in artifact.manifest.targets[FLAVOUR].items() if k not in ("files", "graph")}
    )
    fresh = folder / ".model.rtx.engine.1.part"
    fresh.write_text("new")
    with pytest.raises(ExportError, match=r"another export took its place"):
        record_engine(artifact, FLAVOUR, report, fresh)
    assert (folder / "manifest.json").read_bytes() == before


def test_verdict_of_an_engine_that_was_rebuilt_meanwhile_is_not_kept(artifact: Artifact) -> None:
    assert record(artifact.folder, "", "next").wait() == 0
    found = record_verdicts(artifact, {"onnxruntime": PASS, FLAVOUR: PASS})
    assert found.manifest.verdicts == {"onnxruntime": PASS}
