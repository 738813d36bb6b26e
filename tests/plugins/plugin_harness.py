"""The C++ program that plays TensorRT's part, and the kernels in Triton's interpreter, run from the tests."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tblock.export.plugins import library
from tblock.export.plugins.headers import find_headers

_SOURCE = Path(__file__).parent / "harness-cpp"


@dataclass(frozen=True, kw_only=True)
class Harness:
    """The C++ program that plays TensorRT, the folder of the stand-in driver, and the file of cases."""

    program: Path
    fake_driver: Path
    cases: Path

    def run(
        self, plugins: Path, *arguments: str, stdin: str = "", **fake: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it; `fake` are FAKE_CUDA_* settings and put the stand-in driver in place of the real one."""
        environment = dict(os.environ)
        if fake:
            environment |= {
                "LD_LIBRARY_PATH": str(self.fake_driver),
                "FAKE_CUDA_CASES": str(self.cases),
                **fake,
            }
        command = [str(self.program), str(plugins), *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=300
        )

    def execute(self, plugins: Path, threads: int, **fake: str) -> subprocess.CompletedProcess[str]:
        """The `execute` command with the budgets of a GPU."""
        from tblock.export.plugins.selfcheck import BUDGET

        budgets = [str(units) for units in BUDGET["gpu"].values()]
        return self.run(plugins, "execute", str(threads), str(self.cases), *budgets, **fake)


def build_harness(generated: Path, work: Path, sanitize: bool = False) -> None:
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


def harness_of(work: Path, cases: Path) -> Harness:
    """What `build_harness` built."""
    return Harness(program=work / "plugin_harness", fake_driver=work / "fake-driver", cases=cases)


KERNEL_TWINS = {
    # name: op, shipped text, broken text
    "eps_dropped": ("rms_norm", "/ width.to(tl.float32) + eps)", "/ width.to(tl.float32))"),
    "offset_dropped": ("rms_norm", "(weight + weight_offset)", "weight"),
    "halves_swapped": (
        "swiglu",
        "y = gate / (1.0 + tl.exp(-gate)) * up",
        "y = up / (1.0 + tl.exp(-up)) * gate",
    ),
    "float16_accumulation": ("rms_norm", "tl.sum(x * x,", "tl.sum((x * x).to(tl.float16),"),
    "sum_not_rounded_nor_stored": (
        "add_rms_norm",
        "tl.store(sum_ptr + start + col, total, mask=mask)",
        "pass",
    ),
    "unmasked_norm_tail": ("rms_norm", "mask = live & (col < width)", "mask = live & (col < COLS)"),
    "unmasked_rows": ("rms_norm", "live = row < rows", "live = row < rows + 1"),
    "unmasked_swiglu_tail": ("swiglu", "mask = col < width", "mask = col < width + 1"),
}


def broken_kernel(op: str, shipped: str, broken: str, path: Path) -> Path:
    """A copy of an op's kernel file with a text replaced."""
    text = (library.package_folder() / "kernels" / f"{op}.py").read_text()
    assert shipped in text
    path.write_text(text.replace(shipped, broken))
    return path


def interpret(folder: Path) -> None:
    """The self-check of shipped kernels and twins, in one child: triton chooses its interpreter at import."""
    folder.mkdir()
    runs = [""]
    for name, (op, shipped, broken) in KERNEL_TWINS.items():
        runs.append(f"{op}-fp16-19x@{broken_kernel(op, shipped, broken, folder / f'{name}.py')}")
    command = [sys.executable, "-m", "tblock.export.plugins.selfcheck", *runs]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    (folder / "results").write_text(done.stdout)


@dataclass(frozen=True, kw_only=True)
class Interpreted:
    """Results of `interpret`: of the shipped kernels by case id, of the broken twins by name."""

    shipped: dict[str, Any]
    twins: dict[str, list[Any]]

    @classmethod
    def read(cls, folder: Path) -> "Interpreted":
        """From the folder that it wrote."""
        from tblock.export.plugins.selfcheck import Result

        runs: dict[str, list[Result]] = {}
        for line in (folder / "results").read_text().splitlines():
            entry = json.loads(line)
            runs.setdefault(Path(entry.pop("run").partition("@")[2]).stem, []).append(Result(**entry))
        return cls(shipped={result.id: result for result in runs.pop("")}, twins=runs)
