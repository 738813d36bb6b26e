"""The Triton kernels in the interpreter against float64, and broken twins that must be caught."""

from pathlib import Path

import pytest

from tblock.export.plugins.selfcheck import BUDGET, CASES, Case, Result
from tests.plugins.plugin_harness import interpret


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_plugin_kernel_case_matches_float64(case: Case, interpreted: dict[str, Result]) -> None:
    result = interpreted[case.id]
    assert result.missing == 0, "elements left NaN, or NaN read from outside the input"
    assert result.outside == 0, "stores outside the output"
    assert result.units <= BUDGET["interpreter"][case.dtype]


def test_plugin_kernel_cases_cover_dtypes_and_widths() -> None:
    wanted = {(d, w) for d in BUDGET["gpu"] for w in (1, 7, 576, 1000, 4096, 14336, 65536)}
    for op in ("rms_norm", "add_rms_norm", "swiglu"):
        assert wanted <= {(c.dtype, c.width) for c in CASES if c.op == op}
    assert len({case.id for case in CASES}) == len(CASES)


_TWINS = {
    "eps_dropped": ("/ width.to(tl.float32) + eps)", "/ width.to(tl.float32))", "rms_norm"),
    "offset_dropped": ("(weight + weight_offset)", "weight", "rms_norm"),
    "halves_swapped": (
        "y = gate / (1.0 + tl.exp(-gate)) * up",
        "y = up / (1.0 + tl.exp(-up)) * gate",
        "swiglu",
    ),
    "float16_accumulation": ("tl.sum(x * x,", "tl.sum((x * x).to(tl.float16),", "rms_norm"),
    "sum_not_rounded_nor_stored": (
        "tl.store(sum_ptr + start + col, total, mask=mask)",
        "pass",
        "add_rms_norm",
    ),
    "unmasked_norm_tail": ("mask = live & (col < width)", "mask = live & (col < COLS)", "rms_norm"),
    "unmasked_rows": ("live = row < rows", "live = row < rows + 1", "rms_norm"),
    "unmasked_swiglu_tail": ("mask = col < width", "mask = col < width + 1", "swiglu"),
}


@pytest.mark.parametrize("twin", _TWINS)
def test_plugin_kernel_broken_twin_is_caught(twin: str, kernel_source: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")
    shipped, broken, op = _TWINS[twin]
    assert shipped in kernel_source
    path = tmp_path / "kernels.py"
    path.write_text(kernel_source.replace(shipped, broken))
    results = interpret("--kernels", str(path), "--only", f"{op}-fp16-19x")
    assert results
    assert not all(result.passed("interpreter") for result in results)
