"""The verdict: what passes, what never does, and what it refuses to judge."""

import subprocess
import sys

import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np
import pytest

from tblock.errors import ArtifactError
from tblock.runtimes.verdict import AMBIGUOUS_UP_TO, BUDGETS, Verdict, judge

DTYPES = tuple(BUDGETS)


def verdict(output, reference=None, *, eager=None, inputs=None, dtype="float32", **rest) -> Verdict:
    """`judge` on lists; the reference defaults to the output, eager to the reference rounded."""
    reference = np.array(output if reference is None else reference, dtype=np.float64)
    return judge(
        output=np.array(output, dtype=dtype),
        reference=reference,
        eager=np.array(reference if eager is None else eager, dtype=dtype),
        inputs=None if inputs is None else np.array(inputs, dtype=dtype),
        dtype=dtype,
        **rest,
    )


def block_output(seed: int, dtype: str, adds: float = 1.0) -> dict[str, np.ndarray]:
    """x [2, 7, 33] in the dtype, and as reference x plus something `adds` as large; eager rounds it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 7, 33)).astype(dtype)
    reference = x.astype(np.float64) + adds * rng.standard_normal(x.shape)
    return {"inputs": x, "reference": reference, "eager": reference.astype(dtype)}


def test_tiny_element_off_by_half_passes():
    # Elementwise relative error calls this 50 % off.
    assert verdict([1e-7, 1.0], [2e-7, 1.0]).passed


@pytest.mark.parametrize(
    ("output", "reference", "word"),
    [
        ([np.nan, 1.0], [np.nan, 1.0], "NaN"),
        ([np.inf, 1.0], [np.inf, 1.0], "Inf"),
        ([np.inf, 1.0], [1.0, 1.0], "Inf"),
        ([np.nan, 1.0], [1.0, 1.0], "NaN"),
    ],
    ids=["nan_nan", "inf_inf", "inf_finite", "nan_finite"],
)
def test_not_finite_always_fails(output, reference, word):
    found = verdict(output, reference)
    assert (found.status, found.token) == ("FAIL", ())
    assert word in found.reason


def test_not_finite_in_a_padded_token_fails():
    output = np.ones((1, 2, 3), np.float32)
    output[0, 1] = np.nan
    found = verdict(output, np.ones((1, 2, 3)), live=np.array([[True, False]]))
    assert (found.status, found.token) == ("FAIL", (0, 1))


def test_wrong_shape_fails_and_says_both():
    found = judge(
        output=np.ones((2, 3), np.float32),
        reference=np.ones((3, 2)),
        eager=np.ones((3, 2), np.float32),
        inputs=None,
        dtype="float32",
    )
    assert (found.status, found.reason) == ("FAIL", "y has shape (2, 3), wanted (3, 2)")


def test_wrong_dtype_fails_and_says_both():
    ones = np.ones((3, 2))
    found = judge(
        output=ones.astype("float16"),
        reference=ones,
        eager=ones.astype("float32"),
        inputs=None,
        dtype="float32",
    )
    assert (found.status, found.reason) == ("FAIL", "y is float16, wanted float32")


@pytest.mark.parametrize(
    ("shape", "words"), [((2, 3), "y is all zero"), ((2, 0), "y is all zero"), ((0, 3), "no token is live")]
)
def test_nothing_against_nothing_is_flagged(shape, words):
    found = verdict(np.zeros(shape))
    assert found.status == "REFUSED"
    assert found.reason.startswith(words)


def test_block_that_adds_nothing_in_the_reference_is_flagged():
    found = verdict([[1.0, 2.0]], inputs=[[1.0, 2.0]])
    assert (found.status, found.measure) == ("REFUSED", "y - x")


def test_zero_token_beside_others_passes_when_exact_and_fails_when_not():
    assert verdict([[0.0, 0.0], [1.0, 1.0]]).passed
    found = verdict([[0.0, 1e-20], [1.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]])
    assert (found.status, found.token) == ("FAIL", (0,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("times", "status"),
    [(0.8, "PASS"), (1.2, "AMBIGUOUS"), (AMBIGUOUS_UP_TO + 0.2, "FAIL")],
    ids=["below", "between", "above"],
)
def test_ratio_decides_the_status(dtype, times, status):
    budget = BUDGETS[dtype]
    # Eager is exact here, so the floor is the allowance.
    reference = np.ones((1, 4096))
    output = reference.copy()
    # One element carries the error, so that the norm is known whatever the rounding of the others.
    output[0, 0] += times * budget.k * budget.floor * np.sqrt(4096)
    found = verdict(output, reference, dtype=dtype)
    assert found.status == status
    assert found.passed == (status == "PASS")


@pytest.mark.parametrize("dtype", DTYPES)
def test_eager_itself_passes_and_ten_budgets_off_fails(dtype):
    golden = block_output(0, dtype)
    assert judge(output=golden["eager"], dtype=dtype, **golden).passed
    off = (golden["reference"] * (1.0 + 10 * BUDGETS[dtype].k * BUDGETS[dtype].floor)).astype(dtype)
    assert judge(output=off, dtype=dtype, **golden).status == "FAIL"


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_token_of_many_fails_and_is_named(dtype):
    golden = block_output(1, dtype)
    output = golden["eager"].copy()
    output[1, 4] = output[1, 3]
    found = judge(output=output, dtype=dtype, **golden)
    assert (found.status, found.token) == ("FAIL", (1, 4))
    assert "token (1, 4)" in found.reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_block_that_does_nothing_fails_although_its_output_is_within_budget(dtype):
    golden = block_output(2, dtype, adds=BUDGETS[dtype].k * BUDGETS[dtype].floor / 2)
    found = judge(output=golden["inputs"], dtype=dtype, **golden)
    blind = judge(output=golden["inputs"], dtype=dtype, **{**golden, "inputs": None})
    assert blind.passed
    assert (found.status, found.measure) == ("FAIL", "y - x")


def test_padding_is_not_judged():
    golden = block_output(3, "float32")
    output, live = golden["eager"].copy(), np.ones((2, 7), bool)
    output[0, 5:] = 7.0
    assert judge(output=output, dtype="float32", **golden).status == "FAIL"
    live[0, 5:] = False
    assert judge(output=output, dtype="float32", live=live, **golden).passed
    assert not judge(output=output, dtype="float32", live=~live, **golden).passed


@pytest.mark.parametrize("bad", [np.inf, np.nan], ids=["inf", "nan"])
def test_eager_that_overflows_is_a_refusal_that_names_dtype_and_token(bad):
    golden = block_output(4, "float16")
    golden["eager"][1, 2, 0] = bad
    found = judge(output=golden["reference"].astype("float16"), dtype="float16", **golden)
    assert (found.status, found.token) == ("REFUSED", (1, 2))
    assert found.reason.startswith("float16 overflows in this block")


@pytest.mark.parametrize("dtype", DTYPES)
def test_eager_above_the_ceiling_is_a_refusal_not_a_budget(dtype):
    golden = block_output(5, dtype)
    golden["eager"][0, 3] = golden["inputs"][0, 3]
    found = judge(output=golden["eager"], dtype=dtype, **golden)
    assert (found.status, found.token) == ("REFUSED", (0, 3))
    assert "ceiling" in found.reason


def test_eager_lost_to_the_last_rounding_only_is_not_a_refusal():
    # Channel 0 moves by less than half an ulp (16) of float16 at 24,900: the right answer rounded is off by
    # more than the ceiling of what the block adds, and nothing can do better.
    x = np.ones((1, 1, 8), np.float16)
    x[..., 0] = 24896.0
    reference = x.astype(np.float64) + 0.5
    reference[..., 0] += 5.0
    eager = reference.astype(np.float16)
    found = judge(output=eager, reference=reference, eager=eager, inputs=x, dtype="float16")
    added = np.linalg.norm(reference - x.astype(np.float64))
    assert np.linalg.norm(eager.astype(np.float64) - reference) > BUDGETS["float16"].ceiling * added
    assert found.passed
    # The other channels show that a block adds nothing, or takes away what it should add.
    for wrong in (x, (2 * x - eager).astype(np.float16)):
        found = judge(output=wrong, reference=reference, eager=eager, inputs=x, dtype="float16")
        assert (found.status, found.measure) == ("FAIL", "y - x")


def test_change_below_rounding_at_every_token_is_a_refusal():
    """Rounding takes more than a quarter of what the block adds: adding nothing is within four times that."""
    rng = np.random.default_rng(6)
    # No channel is near 0, where bfloat16 is fine enough to show the change.
    x = rng.uniform(1.0, 2.0, (2, 7, 33)).astype("bfloat16")
    reference = x.astype(np.float64) + 0.003 * rng.standard_normal(x.shape)
    golden = {"inputs": x, "reference": reference, "eager": reference.astype("bfloat16")}
    for output in (golden["eager"], golden["inputs"]):
        found = judge(output=output, dtype="bfloat16", **golden)
        assert (found.status, found.measure) == ("REFUSED", "y - x")
        assert "a block that adds nothing would be within the allowance" in found.reason
    # One token that shows the change is enough to prove the block by.
    reference[0, 3] += 0.5
    golden["eager"] = reference.astype("bfloat16")
    assert judge(output=golden["eager"], dtype="bfloat16", **golden).passed
    found = judge(output=golden["inputs"], dtype="bfloat16", **golden)
    assert (found.status, found.token) == ("FAIL", (0, 3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "int8"}, "y: no budget for dtype 'int8'; known: float32, float16, bfloat16"),
        ({"reference": np.ones((2, 3), np.float32)}, "y: reference is float32, wanted float64"),
        ({"eager": np.ones((2, 3), np.float16)}, "y: eager is float16, wanted float32"),
        ({"eager": np.ones((3, 3), np.float32)}, "y: eager has shape (3, 3), the reference wants (2, 3)"),
        ({"inputs": np.ones((2, 4), np.float32)}, "y: inputs has shape (2, 4), the reference wants (2, 3)"),
        ({"live": np.ones((3,), bool)}, "y: live has shape (3,), the reference wants (2,)"),
    ],
    ids=["dtype", "reference_dtype", "eager_dtype", "eager_shape", "inputs_shape", "live_shape"],
)
def test_golden_data_that_does_not_belong_together_is_an_error(change, words):
    ones = np.ones((2, 3), np.float32)
    given = {"output": ones, "reference": np.ones((2, 3)), "eager": ones, "inputs": None, "dtype": "float32"}
    with pytest.raises(ArtifactError) as caught:
        judge(**{**given, **change})
    assert str(caught.value).startswith(words)


def test_verdict_loads_no_torch():
    code = "import sys, tblock.runtimes.verdict; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
