"""The GPU script without a GPU: its dry run walks the code; no number where something is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_harness import Harness

_SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_check.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
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


def test_plugin_gpu_check_without_a_gpu_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = _run(str(_SCRIPT))
    assert done.returncode == 3
    assert "no GPU; --dry-run" in done.stderr
