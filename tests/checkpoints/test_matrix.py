"""The support matrix: the committed result file covers every family, and cells print what was measured."""

import json
import re
from pathlib import Path

import pytest

from tblock.checkpoints.matrix import RESULTS, matrix_caption, matrix_rows, write_matrix
from tblock.errors import ConfigError
from tests.families.family_cases import CASES
from tests.family_report import FamilyReport


def test_committed_results_cover_every_family_without_failure() -> None:
    rows = matrix_rows()
    assert {row["family"] for row in rows} == {case.family for case in CASES} | {"torch_encoder"}
    for column in ("eager float32", "onnxruntime", "tensorrt-rtx fp16 build"):
        assert all(row[column] != "skipped" for row in rows), column
    assert not [row for row in rows if any("failed" in cell for cell in row.values())]


def test_committed_results_list_the_cases_of_the_table() -> None:
    families = json.loads(RESULTS.read_text(encoding="utf-8"))["families"]
    for case in CASES:
        cells = families[case.family]
        for column in ("float32", "onnxruntime", "tensorrt-rtx"):
            assert case.id in cells[column]["cases"], f"{case.id}, {column}: run the families tests again"
        assert (case.id in (cells["float64"] or {}).get("cases", [])) == case.float64


def test_cells(tmp_path: Path) -> None:
    cells = {
        "float32": {"passed": True, "error": 3.21e-7, "cases": ["a"]},
        "float64": None,
        "gguf": {"passed": False, "error": 0.5, "cases": ["a"]},
        "tensorrt-rtx": {"passed": True, "error": None, "cases": ["a"]},
    }
    write_matrix(tmp_path / "r.json", {"a": cells}, {"torch": "2"})
    (row,) = matrix_rows(tmp_path / "r.json")
    assert list(row.values()) == ["a", "3.2e-07", "-", "failed (5.0e-01)", "skipped", "ok"]


def test_committed_caption_says_unit_legend_versions_and_command() -> None:
    legend, run = matrix_caption().splitlines()
    assert "relative L2 per live token" in legend
    assert all(f"{cell}: " in legend for cell in ("ok", "skipped", "-"))
    assert re.search(r"torch \S+, transformers \S+, onnxruntime \S+, tensorrt_rtx \S+; pytest", run)


def test_report_marks_what_does_not_apply_and_says_where_it_ran(tmp_path: Path) -> None:
    report = FamilyReport()
    report.note("mistral", "float32", "mistral", error=1e-7, passed=True)
    report.write(tmp_path / "r.json")
    (row,) = matrix_rows(tmp_path / "r.json")
    assert list(row.values()) == ["mistral", "1.0e-07", "-", "-", "skipped", "skipped"]
    about = json.loads((tmp_path / "r.json").read_text())["about"]
    wanted = {"date", "device", "commit", "torch", "transformers", "onnxruntime", "tensorrt_rtx", "seconds"}
    assert wanted <= about.keys()


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_missing_or_broken_file_names_the_command(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(
        ConfigError, match=r"r.json: no family results .*run pytest -k families --family-matrix"
    ):
        matrix_rows(path)
