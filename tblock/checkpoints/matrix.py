"""The support matrix: what the families test run proved, kept as one JSON file (`tblock list families`).

The file is written by `pytest tests -k families --family-matrix tblock/checkpoints/families.json`; nothing
here measures.
"""

import json
from pathlib import Path
from typing import Any

from tblock.errors import ConfigError

RESULTS = Path(__file__).parent / "families.json"
"""The committed result file."""

COLUMNS = {
    "float32": "eager float32",
    "float64": "eager float64",
    "gguf": "from GGUF",
    "onnxruntime": "onnxruntime",
    "tensorrt-rtx": "tensorrt-rtx fp16 build",
}
"""Key in the file to column heading. A key a family lacks was skipped."""


def matrix_rows(path: Path = RESULTS) -> list[dict[str, str]]:
    """The table as text, one row for each family.

    Args:
        path: a result file.

    Returns:
        Column heading to cell: the worst error per live token, `ok`, `failed (...)` or `skipped`.

    Raises:
        ConfigError: the file is missing or is no result file.
    """
    try:
        families = json.loads(path.read_text(encoding="utf-8"))["families"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{path}: no family results ({error}); run pytest -k families --family-matrix"
        ) from None
    return [
        {"family": name} | {heading: _cell(cells.get(key)) for key, heading in COLUMNS.items()}
        for name, cells in families.items()
    ]


def write_matrix(path: Path, families: dict[str, dict[str, Any]], about: dict[str, str]) -> None:
    """Write a result file.

    Args:
        path: where.
        families: family to column key to {"passed": bool, "error": float or None, "cases": [...]}.
        about: versions and the command of the run.
    """
    path.write_text(json.dumps({"about": about, "families": families}, indent=2) + "\n", encoding="utf-8")


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "skipped"
    error = "ok" if result.get("error") is None else f"{result['error']:.1e}"
    return error if result["passed"] else f"failed ({error})"
