"""The C++ program that plays TensorRT's part, and the kernels in Triton's interpreter, run from the tests."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tblock.export.plugins import library
from tblock.export.plugins.headers import find_headers
from tblock.export.plugins.selfcheck import BUDGET, Result

_SOURCE = Path(__file__).parent / "harness-cpp"


@dataclass(frozen=True, kw_only=True)
class Harness:
    """The C++ program that plays TensorRT, and the folder of the stand-in driver."""

    program: Path
    fake_driver: Path

    def run(
        self, plugins: Path, *arguments: str, stdin: str = "", **fake: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it; `fake` are FAKE_CUDA_* settings and put the stand-in driver in place of the real one."""
        environment = dict(os.environ)
        if fake:
            environment |= {"LD_LIBRARY_PATH": str(self.fake_driver), **fake}
        command = [str(self.program), str(plugins), *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=300
        )

    def execute(self, plugins: Path, threads: int, **fake: str) -> subprocess.CompletedProcess[str]:
        """The `execute` command with the budgets of a GPU."""
        return self.run(plugins, "execute", str(threads), *(str(u) for u in BUDGET["gpu"].values()), **fake)


def build_harness(generated: Path, work: Path, sanitize: bool) -> Harness:
    """Build the program and the stand-in driver in `work`."""
    defines = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo" if sanitize else "Release",
        "TBLOCK_GENERATED": generated,
        "TBLOCK_PLUGIN_SOURCE": library.package_folder() / "trt-plugin",
        "TBLOCK_TENSORRT_INCLUDE": find_headers()[0],
        "TBLOCK_SANITIZE": "ON" if sanitize else "OFF",
    }
    options = [f"-D{name}={value}" for name, value in defines.items()]
    for command in (
        ["-S", str(_SOURCE), "-B", str(work), *options],
        ["--build", str(work), "--parallel"],
    ):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return Harness(program=work / "plugin_harness", fake_driver=work / "fake-driver")


def interpret(*arguments: str) -> list[Result]:
    """Run the kernels' self-check in a child: the interpreter must be chosen before triton is imported."""
    command = [sys.executable, "-m", "tblock.export.plugins.selfcheck", *arguments]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return [Result(**json.loads(line)) for line in done.stdout.splitlines()]
