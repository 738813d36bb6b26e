"""The GPU script without a GPU: its dry run walks the code; no number where something is wrong."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.plugins.plugin_harness import Harness

_SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_check.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.exhaustive
def test_plugin_gpu_check_dry_run_walks_everything(
    harness: Harness, plugin_library: Path, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")
    output = tmp_path / "gpu.json"
    paths = ["--library", str(plugin_library), "--harness", str(harness.program), "-o", str(output)]
    done = _run(str(_SCRIPT), "--dry-run", *paths)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert result["status"] == "right"
    assert result["machine"]["device"] == "cpu (dry run)"
    assert result["kernels"]["cases"] > 50
    assert {(r["who"], r["dtype"], r["status"]) for r in result["blocks"]} == {
        (who, dtype, "pass") for who in ("eager", "compile") for dtype in ("float16", "bfloat16")
    }
    assert {(r["op"], r["packed"], r["who"], r["status"]) for r in result["timings"]} == {
        (op, packed, who, "timed")
        for op, packed in (("rms_norm", False), ("add_rms_norm", False), ("swiglu", False), ("swiglu", True))
        for who in ("copy", "tblock", "torch.compile")
    }
    assert "rms_norm 2x4096" in done.stdout


def test_plugin_gpu_check_gives_no_number_while_wrong(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")
    output = tmp_path / "gpu.json"
    code = (
        f"import sys; sys.path.insert(0, {str(_SCRIPT.parent)!r}); import gpu_check\n"
        "gpu_check.check_blocks = lambda setup: []\n"
        "wrong = {'status': 'fail', 'place': 'x', 'cases': 1, 'worst_units': {}}\n"
        "gpu_check.check_kernels = lambda setup: wrong\n"
        f"sys.exit(gpu_check.main(['--dry-run', '-o', {str(output)!r}]))"
    )
    done = _run("-c", code)
    assert done.returncode == 1, done.stderr
    result = json.loads(output.read_text())
    assert result["status"] == "wrong"
    assert result["timings"] == []


@pytest.fixture
def gpu_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script in this process on a made-up GPU: kernels and blocks pass, timing fails the test."""
    import torch

    monkeypatch.syspath_prepend(str(_SCRIPT.parent))
    import gpu_check

    passed = {"status": "pass", "place": "gpu", "cases": 1, "worst_units": {}}
    block = {"who": "eager", "dtype": "float16", "status": "pass"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(gpu_check.ctypes, "CDLL", lambda path: None)
    monkeypatch.setattr(gpu_check, "machine", lambda setup: {"device": "made up"})
    monkeypatch.setattr(gpu_check, "check_kernels", lambda setup: passed)
    monkeypatch.setattr(gpu_check, "check_blocks", lambda setup: [block])
    monkeypatch.setattr(gpu_check, "time_kernels", lambda setup: pytest.fail("timed"))
    (tmp_path / "lib.so").touch()
    return gpu_check


def test_plugin_gpu_check_with_a_part_not_executed_is_not_right(
    gpu_check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "gpu.json"
    assert gpu_check.main(["--library", str(tmp_path / "lib.so"), "-o", str(output)]) == 1
    result = json.loads(output.read_text())
    assert result["harness"]["status"] == "not executed"
    assert (result["status"], result["timings"]) == ("incomplete", [])
    assert "no timings" in capsys.readouterr().out
    whole = {"harness": {"status": "pass"}, "kernels": {"status": "pass"}, "blocks": [{"status": "pass"}]}
    assert gpu_check.status_of(whole, dry=False) == "right"
    for change in ({"blocks": []}, {"blocks": [{"status": "not judged"}]}):
        assert gpu_check.status_of(whole | change, dry=False) == "incomplete"
    assert gpu_check.status_of(whole | {"kernels": {"status": "fail"}}, dry=False) == "wrong"


def test_plugin_gpu_check_that_breaks_off_leaves_what_it_had(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(setup: object) -> None:
        raise RuntimeError("the GPU fell off")

    monkeypatch.setattr(gpu_check, "check_blocks", fail)
    output = tmp_path / "gpu.json"
    with pytest.raises(RuntimeError, match="fell off"):
        gpu_check.main(["--library", str(tmp_path / "lib.so"), "-o", str(output)])
    result = json.loads(output.read_text())
    assert (result["status"], result["kernels"]["status"]) == ("incomplete", "pass")


def test_plugin_gpu_check_keeps_to_its_time(gpu_check: ModuleType, tmp_path: Path) -> None:
    harness = tmp_path / "harness"
    harness.write_text("#!/bin/sh\nexec sleep 60\n")
    harness.chmod(0o755)
    setup = gpu_check.Setup(device="cuda", library=None, deadline=time.monotonic() + 1)
    row = gpu_check.run_harness(harness, tmp_path / "lib.so", setup)
    assert (row["status"], row["reason"]) == ("not executed", "stopped after 1 s")
    late = gpu_check.Setup(device="cuda", library=None, deadline=time.monotonic() + 20)
    assert late.skipped() is None
    assert "torch.compile may need 30 s" in late.skipped(compiles=True)["reason"]


def test_plugin_gpu_check_without_a_gpu_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = _run(str(_SCRIPT))
    assert done.returncode == 3
    assert "no GPU; --dry-run" in done.stderr
