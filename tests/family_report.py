"""Collects the families tests' results, column by column, for the support matrix."""

import platform
from pathlib import Path
from typing import Any

from tblock.checkpoints.matrix import COLUMNS, write_matrix
from tblock.checkpoints.opening import FAMILIES


class FamilyReport:
    """Worst error and verdict of each family and column; what nobody notes prints as skipped."""

    def __init__(self) -> None:
        self._families: dict[str, dict[str, dict[str, Any]]] = {}

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
        import torch
        import transformers

        about = {
            "command": "pytest tests -k families --family-matrix tblock/checkpoints/families.json",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        order = [*FAMILIES, "torch_encoder"]
        families = {name: self._families[name] for name in sorted(self._families, key=order.index)}
        write_matrix(path, families, about)
