"""Unknown names, options that are another runtime's, and packages that are missing: each is one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from tblock.errors import ArtifactError, RuntimeUnavailable
from tblock.runtimes import RUNTIMES, bench, check, load
from tblock.runtimes.ort import resolve_provider

ROOT = Path(__file__).resolve().parents[2]
PROVIDERS = [f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "QNN", "Azure")]


@pytest.mark.parametrize("verb", [lambda f: load(f, "onxruntime"), lambda f: check(f, ["onxruntime"])])
def test_unknown_runtime_lists_the_known(odd16, verb):
    with pytest.raises(ArtifactError) as error:
        verb(odd16)
    assert str(error.value) == (
        f"runtime 'onxruntime': unknown; did you mean onnxruntime? known: {', '.join(RUNTIMES)}"
    )


@pytest.mark.parametrize("runtime", ["aoti", "tensorrt", "tensorrt-rtx"])
def test_runtime_without_its_target_says_how_to_export(odd16, runtime):
    with pytest.raises(ArtifactError) as error:
        load(odd16, runtime)
    assert str(error.value) == f"{odd16}: artifact has no {runtime} target; export with --to {runtime}"


OPTIONS = {
    "provider-unknown": ("onnxruntime", {"provider": "gpu"}, "provider 'gpu': unknown to onnxruntime"),
    "provider-of-eager": ("eager", {"provider": "tpu"}, "provider 'tpu': unknown to eager; known: cpu"),
    "level-unknown": ("onnxruntime", {"optimization": "O3"}, "optimization 'O3': unknown; known: off"),
    "not-its-option": (
        "onnxruntime",
        {"cuda_graph": True},
        "cuda_graph=True: onnxruntime has no such option",
    ),
    "threads-0": ("onnxruntime", {"threads": 0}, "threads=0: must be at least 1"),
    "threads-text": ("onnxruntime", {"threads": "2"}, "threads='2': must be at least 1"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_option_wrong_is_named(odd16, case):
    runtime, options, message = OPTIONS[case]
    with pytest.raises(ArtifactError) as error:
        load(odd16, runtime, **options)
    assert str(error.value).startswith(message)


def test_provider_names_are_short_or_full():
    for asked in ("cpu", "CPU", "CPUExecutionProvider"):
        assert resolve_provider(asked, PROVIDERS[:1], PROVIDERS) == "CPUExecutionProvider"


def test_provider_not_built_in_names_the_extra():
    with pytest.raises(RuntimeUnavailable) as error:
        resolve_provider("cuda", ["CPUExecutionProvider"], PROVIDERS)
    assert str(error.value) == (
        "onnxruntime: no CUDAExecutionProvider here (available: cpu); "
        "it needs pip install 'tblock[onnxruntime-gpu]'"
    )


def test_provider_that_does_not_start_is_not_replaced(odd16, monkeypatch):
    """The session falls back to the CPU with a warning; the runner must not."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: PROVIDERS)
    monkeypatch.setattr(onnxruntime, "get_all_providers", lambda: PROVIDERS)
    with pytest.raises((RuntimeUnavailable, ArtifactError), match="CUDAExecutionProvider"):
        load(odd16, "onnxruntime", provider="cuda")


def in_fresh_process(code, cwd):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, check=False)


def test_package_missing_names_the_extra(odd16, tmp_path):
    code = f"""
import sys
sys.modules["onnxruntime"] = None
from tblock.runtimes import load
try:
    load({str(odd16)!r}, "onnxruntime")
except Exception as error:
    print(type(error).__name__, error)
"""
    out = in_fresh_process(code, tmp_path).stdout
    assert out.startswith("RuntimeUnavailable onnxruntime: onnxruntime is not usable here")
    assert "pip install 'tblock[onnxruntime]'" in out


def test_torch_missing_names_the_extra(odd16, tmp_path):
    code = f"""
import sys
sys.modules["torch"] = None
from tblock.runtimes import load
try:
    load({str(odd16)!r}, "eager")
except Exception as error:
    print(type(error).__name__, error)
"""
    out = in_fresh_process(code, tmp_path).stdout
    assert out.startswith("RuntimeUnavailable eager: torch is not usable here")
    assert "pip install 'tblock[export]'" in out


def test_onnx_artifact_runs_without_torch(odd16, tmp_path):
    code = f"""
import sys
import tblock.runtimes
assert "numpy" not in sys.modules
import numpy as np
run = tblock.runtimes.load({str(odd16)!r}, "onnxruntime")
y = run(np.ones((2, 7, 60), np.float16))
loaded = [name for name in sys.modules if name.split(".")[0] in ("torch", "onnx")]
print(y.shape, y.dtype, loaded)
"""
    done = in_fresh_process(code, tmp_path)
    assert done.stdout.strip() == "(2, 7, 60) float16 []", done.stderr


def test_engine_runner_loads_no_torch(odd32, tmp_path):
    code = f"""
import sys
import tblock.runtimes
try:
    tblock.runtimes.load({str(odd32)!r}, "tensorrt-rtx")
except tblock.runtimes.loading.RuntimeUnavailable:
    pass
print([name for name in sys.modules if name.split(".")[0] == "torch"])
"""
    done = in_fresh_process(code, tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


def test_bare_import_is_refused(tmp_path):
    done = in_fresh_process("import runtimes", ROOT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: import tblock.runtimes, not runtimes: this folder is the source of that package"
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"B": 9}, "shape B=9: above the declared maximum 4"),
        ({"Q": 1}, "shape Q=1: no such dimension; known: B, S"),
    ],
    ids=["outside", "unknown-letter"],
)
def test_bench_shape_wrong_is_named(odd16, shape, message):
    with pytest.raises(ArtifactError) as error:
        bench(odd16, ["onnxruntime"], shapes=[shape])
    assert str(error.value).startswith(message)
