"""`tblock demo`: one table, one process for each runtime, progress that says how long it has taken."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tblock.cli import demo
from tblock.runtimes import RUNTIMES, jobs


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runtimes that a process was started for."""
    names: list[str] = []
    ask = jobs.ask

    def counted(module: str, job: Any, **rest: Any) -> Any:
        names.append(job["runtime"])
        return ask(module, job, **rest)

    monkeypatch.setattr(jobs, "ask", counted)
    return names


def test_demo_judges_and_times_each_runtime_in_one_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    """On a machine without compiler and builders, which leaves what is quick."""
    import torch._inductor.config  # noqa: F401  (reads CXX once, for all tests of this process)

    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    monkeypatch.setattr(demo, "_targets", lambda: (("onnx",), {"aoti": "building needs g++"}))
    demo.run(folder=tmp_path / "demo", preset="tiny", dtype="float32")
    out, err = capfd.readouterr()
    assert asked == ["eager", "compile", "onnxruntime"]
    cells = {line.split()[0]: line for line in out.splitlines() if line.split()[:1]}
    assert "PASS" in cells["eager"]
    assert re.search(r"onnxruntime +yes +yes .* PASS +[\d.]+ ms", cells["onnxruntime"]), out
    assert re.search(r"compile +- +no .*no C\+\+ compiler found", cells["compile"]), out
    assert re.search(r"aoti +no +no .* building needs g\+\+", cells["aoti"]), out
    assert re.search(r"took \d+ s", out)
    lines = [line for line in err.splitlines() if line.startswith("... ")]
    assert all(re.match(r"\.\.\. +\d+ s  \S", line) for line in lines), err
    assert any(line.endswith("onnxruntime: timing B1 S128") for line in lines), err


def test_progress_says_again_what_is_being_waited_for(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STILL", 0.05)
    clock = demo._Clock()
    clock("aoti")
    seen = ""
    while "aoti (since" not in seen:
        seen += capfd.readouterr().err
    clock.stop()


@pytest.mark.exhaustive
def test_whole_demo_runs_everything_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    demo.run(folder=tmp_path / "demo", preset="tiny", json=True)
    rows = json.loads(capfd.readouterr().out)
    assert [row["runtime"] for row in rows] == list(RUNTIMES)
    passed = [row["runtime"] for row in rows if row["status"] == "PASS"]
    assert passed == ["eager", "compile", "aoti", "onnxruntime"]
    assert all(row["bench"]["median_s"] > 0 for row in rows if row["runtime"] in passed)
    # compile once more: its cache is filled while the export runs.
    ran = [row["runtime"] for row in rows if row["status"] != "NOT BUILT"]
    assert sorted(asked) == sorted([*ran, "compile"])
