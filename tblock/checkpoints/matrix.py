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
"""Key in the file to column heading. A key a family lacks was not run, one that is null does not apply."""

_VERSIONS = ("torch", "transformers", "onnxruntime", "tensorrt_rtx")


def matrix_rows(path: Path = RESULTS) -> list[dict[str, str]]:
    """The table as text, one row for each family.

    Args:
        path: a result file.

    Returns:
        Column heading to cell: the worst error per live token, `ok`, `failed (...)`, `skipped` (not run)
        or `-` (does not apply).

    Raises:
        ConfigError: the file is missing or is no result file.
    """
    return [
        {"family": name} | {heading: _cell(cells, key) for key, heading in COLUMNS.items()}
        for name, cells in _results(path)["families"].items()
    ]


def matrix_caption(path: Path = RESULTS) -> str:
    """What the cells mean and where they come from, in two lines.

    Args:
        path: a result file.

    Raises:
        ConfigError: the file is missing or is no result file.
    """
    about = _results(path)["about"]
    facts = [str(about[key]) for key in ("date", "device", "commit") if key in about]
    facts += [f"{key} {about[key]}" for key in _VERSIONS if key in about]
    return (
        "worst relative L2 per live token against the family's own code; ok: built, not run; "
        "skipped: not run; -: does not apply (that code casts to float32, or no GGUF of the family is read)\n"
        f"{', '.join(facts)}; {about.get('command', 'command unknown')}"
    )


def _results(path: Path) -> dict[str, Any]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        return {key: results[key] for key in ("families", "about")}
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{path}: no family results ({error}); run pytest -k families --family-matrix"
        ) from None


def write_matrix(path: Path, families: dict[str, dict[str, Any]], about: dict[str, Any]) -> None:
    """Write a result file.

    Args:
        path: where.
        families: family to column key to {"passed": bool, "error": float or None, "cases": [...]}, or to None
            where the column does not apply.
        about: date, device, versions and the command of the run.
    """
    path.write_text(json.dumps({"about": about, "families": families}, indent=2) + "\n", encoding="utf-8")


def _cell(cells: dict[str, Any], key: str) -> str:
    if key not in cells:
        return "skipped"
    result = cells[key]
    if result is None:
        return "-"
    error = "ok" if result.get("error") is None else f"{result['error']:.1e}"
    return error if result["passed"] else f"failed ({error})"
