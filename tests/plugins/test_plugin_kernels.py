"""The Triton kernels in the interpreter against float64, and broken twins that must be caught."""

import pytest

from tblock.contract import PLUGINS
from tests.plugins.plugin_harness import KERNEL_TWINS, Interpreted

pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")

from tblock.export.plugins.selfcheck import BUDGET, CASES


@pytest.mark.parametrize("op", [row.name for row in PLUGINS])
def test_plugin_kernel_cases_match_float64(op: str, interpreted: Interpreted) -> None:
    cases = [case for case in CASES if case.op == op]
    for case in cases:
        result = interpreted.shipped[case.id]
        assert result.missing == 0, f"{case.id}: elements left NaN, or NaN read from outside the input"
        assert result.outside == 0, f"{case.id}: stores outside the output"
        assert result.units <= BUDGET["interpreter"][case.dtype], case.id
    wanted = {(d, w) for d in BUDGET["gpu"] for w in (1, 7, 576, 1000, 4096, 14336, 65536)}
    assert wanted <= {(c.dtype, c.width) for c in cases}


def test_plugin_kernel_cases_have_readable_unique_ids(interpreted: Interpreted) -> None:
    assert len({case.id for case in CASES}) == len(CASES) == len(interpreted.shipped)
    assert "rms_norm-fp16-19x576-weight_offset=1" in interpreted.shipped
    assert "swiglu-bf16-5x4096-packed" in interpreted.shipped


@pytest.mark.parametrize("twin", KERNEL_TWINS)
def test_plugin_kernel_broken_twin_is_caught(twin: str, interpreted: Interpreted) -> None:
    results = interpreted.twins[twin]
    assert results
    assert not all(result.passed("interpreter") for result in results)
