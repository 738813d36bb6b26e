"""What must not look like a verdict: crashes, nothing that ran, other people's graphs, a killed export."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from tblock import preset
from tblock.export.staging import staged_folder
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


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_rebuilt_engine_becomes_the_artifacts(link: Any, run: Run, tiny: Path, tmp_path: Path) -> None:
    """Of an artifact made of links as well, as hub caches and copies that save space are."""
    copy = tmp_path / "linked"
    copy.mkdir()
    for path in tiny.iterdir():
        link(path, copy / path.name)
    with pytest.raises(onnx.checker.ValidationError, match=r"hard links|symbolic link"):
        # The twin: the checker, given the file.
        onnx.checker.check_model(str(copy / "model.onnx"))
    before = (tiny / "manifest.json").read_bytes()
    old = "profile 0, x: min 1x1x64, opt 1x16x64, max 4x64x64"
    assert f"  {old}" in run("inspect", copy).out.splitlines()
    refused = run("build", copy, "--runtime", "tensorrt-rtx", *SHAPES)
    assert (refused.code, refused.out) == (2, "")
    assert refused.complaint == [
        f"tblock: {copy}: has a tensorrt-rtx engine already ({old}); "
        "--force replaces it, --output writes another"
    ]
    done = run("build", copy, "--runtime", "tensorrt-rtx", *SHAPES, "--force")
    assert done.code == 0, done.err
    assert "  profile 0, x: min 1x1x64, opt 1x8x64, max 2x16x64" in run("inspect", copy).out.splitlines()
    assert (tiny / "manifest.json").read_bytes() == before
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


def signalled(number: signal.Signals, folder: Path, before: str = "") -> int:
    """Exit code of an export that gets a signal while it captures."""
    # Under nohup or in the background signals are ignored, and so they would be by what is started there.
    heard = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "signal.signal(signal.SIGINT, signal.default_int_handler)"
    )
    code = f"{heard}\nimport tblock.cli\n{before}\ntblock.cli.main()"
    words = ["export", "--preset", "tiny", "--no-verify", "-o", str(folder / "deep" / "out")]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "capture" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    return process.wait(60)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGHUP,
        *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_export_told_to_stop_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    assert signalled(number, tmp_path) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_export_that_hears_no_signal_is_caught_and_swept_by_the_next(tmp_path: Path) -> None:
    """The twin leaves its hidden folder; the next export to the same path takes it away."""
    deaf = "tblock.cli.signal.signal = lambda *_: None"
    assert signalled(signal.SIGHUP, tmp_path, deaf) == -signal.SIGHUP
    (left,) = (tmp_path / "deep").iterdir()
    assert left.name.startswith(".out.")
    with staged_folder(tmp_path / "deep" / "out", force=False) as folder:
        assert list((tmp_path / "deep").iterdir()) == [folder]


def test_reader_that_goes_away_is_no_error() -> None:
    verb = f'"{sys.executable}" -c "from tblock.cli import main; main()" list presets'
    shell = f"{verb} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "0"
    assert done.stderr == ""


def shell(line: str, *words: object, **environment: str) -> tuple[int, str]:
    """A line of bash, `tblock` in it; the exit code and what stood on both streams."""
    tblock = f"'{sys.executable}' -c 'from tblock.cli import main; main()'"
    done = subprocess.run(
        ["bash", "-c", line.replace("tblock", tblock), "bash", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("tblock list presets | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("tblock list presets >&-", 0, ""),
        ("tblock list presets >&- 2>&-", 0, ""),
        ("tblock list presets >/dev/full", 2, "stdout: No space left on device; the report was not written"),
        ("tblock inspect nowhere >/dev/full", 2, "nowhere: no such folder; make an artifact with `tblock"),
        ("tblock inspect nowhere 2>/dev/full", 2, ""),
    ],
    ids=["reader-gone", "closed", "both-closed", "full", "error-first", "stderr-full"],
)
def test_stream_that_takes_nothing_is_no_verdict_and_no_crash(line: str, code: int, said: str) -> None:
    found, text = shell(line)
    assert (found, text.strip()[: len(said) + 8]) == (code, f"tblock: {said}" if said else "")


def test_reader_of_the_progress_who_goes_does_not_end_the_export(tmp_path: Path) -> None:
    line = 'tblock export --preset tiny --seq 8 --no-golden -o "$1" 2>&1 >/dev/null | head -1'
    assert shell(line + "; exit ${PIPESTATUS[0]}", tmp_path / "a") == (0, "... loading torch\n")
    assert read_artifact(tmp_path / "a").manifest.targets["onnx"]


def test_name_that_the_terminals_encoding_lacks_is_spelled_out(tmp_path: Path) -> None:
    code, text = shell('tblock inspect "$1"', tmp_path / "ünï 空", PYTHONIOENCODING="ascii")
    assert code == 2
    assert r"\xfcn\xef \u7a7a: no such folder" in text
