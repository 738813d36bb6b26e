"""Collects the families tests' results, column by column, for the support matrix, and where they ran."""

import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tblock.checkpoints import families_gguf
from tblock.checkpoints.matrix import COLUMNS, write_matrix
from tblock.checkpoints.opening import FAMILIES

COMMAND = "pytest tests -k families -n 0 -m '' --family-matrix tblock/checkpoints/families.json"

PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "onnxruntime": "onnxruntime",
    "tensorrt_rtx": "tensorrt-rtx-cu13",
}
"""Key in the file to the distribution it is the version of."""


class FamilyReport:
    """Worst error and verdict of each family and column; what nobody notes was not run or does not apply."""

    def __init__(self) -> None:
        self._families: dict[str, dict[str, dict[str, Any]]] = {}
        self._start = time.perf_counter()
        self._about = provenance(COMMAND)

    def note(self, family: str, column: str, case: str, *, error: float | None, passed: bool) -> None:
        """Add one case's outcome.

        Args:
            family: row.
            column: a key of tblock.checkpoints.matrix.COLUMNS.
            case: test case id.
            error: worst error per live token; None where the column only builds.
            passed: whether it is within its limit. Call before asserting.
        """
        assert column in COLUMNS
        cell = self._families.setdefault(family, {}).setdefault(
            column, {"passed": True, "error": None, "cases": []}
        )
        cell["passed"] = cell["passed"] and passed
        cell["error"] = error if cell["error"] is None or error is None else max(cell["error"], error)
        if case not in cell["cases"]:
            cell["cases"].append(case)

    def write(self, path: Path) -> None:
        """Write the result file."""
        order = [*FAMILIES, "torch_encoder"]
        families = {
            name: dict.fromkeys(_inapplicable(name)) | self._families[name]
            for name in sorted(self._families, key=order.index)
        }
        write_matrix(path, families, self._about | {"seconds": round(time.perf_counter() - self._start, 1)})


def _inapplicable(family: str) -> list[str]:
    """Columns that cannot be: float64 where the family's own code casts to float32, GGUF without a row."""
    from tests.families.family_cases import CASES

    exact = {case.family for case in CASES if case.float64} | {"torch_encoder"}
    in_gguf = {row.name for row in families_gguf.ROWS.values()}
    return [column for column, names in (("float64", exact), ("gguf", in_gguf)) if family not in names]


def provenance(command: str) -> dict[str, Any]:
    """Facts of a run, asked before it: this is the code that was loaded.

    Args:
        command: that repeats it.
    """
    facts = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "device": _cpu_model(),
        "commit": _commit(),
        "python": platform.python_version(),
    }
    return facts | {key: _version(package) for key, package in PACKAGES.items()}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit() -> str:
    """Short hash, "+" behind it where the tree differs."""
    asked = ["git", "describe", "--always", "--exclude", "*", "--dirty=+"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return done.stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
