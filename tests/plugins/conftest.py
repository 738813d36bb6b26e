"""Fixtures of the plugin tests: the library, the generated sources, the C++ harness, and the interpreter's results."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tblock.export.plugins import build as build_library
from tblock.export.plugins import library
from tblock.export.plugins.build import check_tools, compile_library, generate
from tblock.export.plugins.headers import find_headers
from tblock.export.plugins.selfcheck import BUDGET, Result

_HARNESS_SOURCE = Path(__file__).parent / "harness-cpp"


@dataclass(frozen=True, kw_only=True)
class Harness:
    """The C++ program that plays TensorRT, and the folder of the stand-in driver."""

    program: Path
    fake_driver: Path

    def run(self, plugins: Path, *arguments: str, stdin: str = "", **fake: str) -> subprocess.CompletedProcess[str]:
        """Run it; `fake` are FAKE_CUDA_* settings and put the stand-in driver in place of the real one."""
        environment = dict(os.environ)
        if fake:
            environment |= {"LD_LIBRARY_PATH": str(self.fake_driver), **fake}
        command = [str(self.program), str(plugins), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, timeout=300)

    def execute(self, plugins: Path, threads: int, **fake: str) -> subprocess.CompletedProcess[str]:
        """The `execute` command with the budgets of a GPU."""
        return self.run(plugins, "execute", str(threads), *(str(u) for u in BUDGET["gpu"].values()), **fake)


@pytest.fixture(scope="session")
def plugin_library() -> Path:
    """The library as `tblock plugin build` makes it, from the per-user cache when it is there."""
    return build_library()


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated C++ sources and compiled kernels."""
    check_tools()
    folder = tmp_path_factory.mktemp("plugin") / "generated"
    generate(folder, find_headers()[1])
    return folder


def _build_harness(generated: Path, work: Path, sanitize: bool) -> Harness:
    defines = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo" if sanitize else "Release",
        "TBLOCK_GENERATED": generated,
        "TBLOCK_PLUGIN_SOURCE": library.package_folder() / "trt-plugin",
        "TBLOCK_TENSORRT_INCLUDE": find_headers()[0],
        "TBLOCK_SANITIZE": "ON" if sanitize else "OFF",
    }
    options = [f"-D{name}={value}" for name, value in defines.items()]
    for command in (["-S", str(_HARNESS_SOURCE), "-B", str(work), *options], ["--build", str(work), "--parallel"]):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return Harness(program=work / "plugin_harness", fake_driver=work / "fake-driver")


@pytest.fixture(scope="session")
def harness(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """The harness, built for speed."""
    return _build_harness(generated, tmp_path_factory.mktemp("plugin-harness"), sanitize=False)


@pytest.fixture(scope="session")
def sanitized(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Harness, Path]:
    """Harness and library with AddressSanitizer and UBSan."""
    work = tmp_path_factory.mktemp("plugin-sanitized")
    source = library.package_folder() / "trt-plugin"
    headers = find_headers()[0]
    built = compile_library(source, generated, headers, work / "library", build_type="RelWithDebInfo", sanitize=True)
    return _build_harness(generated, work / "harness", sanitize=True), built


def interpret(*arguments: str) -> list[Result]:
    """Run the kernels' self-check in a child: the interpreter must be chosen before triton is imported."""
    command = [sys.executable, "-m", "tblock.export.plugins.selfcheck", *arguments]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return [Result(**json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def interpreted() -> dict[str, Result]:
    """Result by case id, of the shipped kernels."""
    pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")
    return {result.id: result for result in interpret()}


@pytest.fixture(scope="session")
def kernel_source() -> str:
    """Text of the shipped kernel file, for broken twins."""
    return (library.package_folder() / "kernels.py").read_text()
