"""golden.safetensors: its layout, the round trip, and what is not golden data."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tblock.errors import ArtifactError
from tblock.golden import GoldenCase, read_golden, write_golden


def case(batch: int, seq: int, dtype: type = np.float32) -> GoldenCase:
    x = np.random.default_rng(batch * seq).standard_normal((batch, seq, 6))
    mask = np.ones((batch, seq), bool)
    return GoldenCase(
        {"x": x.astype(dtype), "padding_mask": mask}, {"y": x * 2}, {"y": (x * 2).astype(dtype)}
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_golden_cases_written_read_back_equal(dtype: type, tmp_path: Path) -> None:
    cases = [case(b, s, dtype) for b, s in [(1, 1), (2, 7), *((1, n) for n in range(2, 12))]]
    write_golden(tmp_path / "g", cases)
    back = read_golden(tmp_path / "g")
    assert len(back) == len(cases)
    for one, other in zip(cases, back, strict=True):
        for kind in ("inputs", "reference", "eager"):
            left, right = getattr(one, kind), getattr(other, kind)
            assert left.keys() == right.keys()
            assert all(np.array_equal(left[k], right[k]) and left[k].dtype == right[k].dtype for k in left)


def test_golden_layout_is_the_published_one(tmp_path: Path) -> None:
    write_golden(tmp_path / "g", [case(1, 3), case(2, 7)])
    tensors = safetensors.numpy.load_file(tmp_path / "g")
    assert sorted(tensors) == sorted(
        f"case{n}/{name}"
        for n in (0, 1)
        for name in ("input/x", "input/padding_mask", "reference/y", "eager/y")
    )
    assert tensors["case1/reference/y"].dtype == np.float64


def test_golden_of_a_transposed_array_keeps_its_values(tmp_path: Path) -> None:
    """safetensors writes the bytes as they lie: without a contiguous copy the values would be mixed up."""
    whole = case(2, 7)
    turned = {"y": np.asfortranarray(whole.reference["y"])}
    write_golden(tmp_path / "g", [GoldenCase(whole.inputs, turned, whole.eager)])
    assert np.array_equal(read_golden(tmp_path / "g")[0].reference["y"], whole.reference["y"])


@pytest.mark.parametrize(
    "content", [None, b"", b"nonsense" * 9, "foreign"], ids=["none", "empty", "noise", "keys"]
)
def test_golden_that_is_not_names_the_file(content: bytes | str | None, tmp_path: Path) -> None:
    path = tmp_path / "g"
    if content == "foreign":
        safetensors.numpy.save_file({"weight": np.zeros(3)}, path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"/g: not golden data \(.*\); export again$"):
        read_golden(path)
