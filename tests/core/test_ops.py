"""The contract's ops: torch's own checks, and numpy float64 as the judge."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from tblock import ops
from tblock.runtimes.verdict import BUDGETS, judge
from tblock.weights import DTYPES, to_array
from tests.core import numpy_truth as truth

Call = tuple[str, list[Tensor | None], dict[str, Any]]


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(
        DTYPES.get(dtype, torch.float64)
    )


def strided(x: Tensor) -> Tensor:
    """The same values, every second element of a wider tensor."""
    return torch.stack((x, torch.full_like(x, torch.nan)), -1)[..., 0]


def moved(tensors: list[Tensor | None]) -> list[Tensor | None]:
    """The float tensors strided, NaN between their values."""
    return [t if t is None or t.dtype == torch.bool else strided(t) for t in tensors]


def call_of(name: str, dtype: str = "float32") -> Call:
    """Odd sizes, and a width that is no power of two."""
    if name == "rms_norm":
        return name, [draw(2, 7, 60, dtype=dtype), draw(60, dtype=dtype)], {"eps": 1e-6, "weight_offset": 1.0}
    if name == "add_rms_norm":
        x, residual = (draw(2, 7, 60, dtype=dtype, seed=s) for s in (1, 2))
        return name, [x, residual, draw(60, dtype=dtype)], {"eps": 1e-5, "weight_offset": 0.0}
    if name == "swiglu":
        return name, [draw(3, 33, 100, dtype=dtype, seed=s) for s in (3, 4)], {}
    if name.startswith("rope"):
        angles = np.outer(np.arange(7), 100.0 ** (-np.arange(0, 12, 2) / 12))
        table = torch.float64 if dtype == "float64" else torch.float32
        cos, sin = (torch.from_numpy(f(angles)).to(table) for f in (np.cos, np.sin))
        return "rope", [draw(2, 3, 7, 20, dtype=dtype), cos, sin], {"interleaved": int("interleaved" in name)}
    q, k, v = draw(2, 6, 7, 20, dtype=dtype), *(draw(2, 3, 7, 20, dtype=dtype, seed=s) for s in (5, 6))
    mask = None
    if "mask" in name:
        mask = torch.arange(7)[None, None, None, :] < torch.tensor([7, 4])[:, None, None, None]
    options = {"scale": 0.3, "causal": 1, "window": 3 if "window" in name else 0, "soft_cap": 0.0}
    return "attention", [q, k, v, mask], {**options, "soft_cap": 2.0 if "cap" in name else 0.0}


OPS = ("rms_norm", "add_rms_norm", "swiglu", "rope", "rope-interleaved", "attention", "attention-mask",
       "attention-window", "attention-cap", "attention-mask-window-cap")  # fmt: skip


def run(call: Call) -> list[Tensor]:
    name, tensors, attributes = call
    result = getattr(torch.ops.tblock, name)(*tensors, **attributes)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def by_numpy(call: Call) -> list[np.ndarray]:
    """What the op's formula gives in float64 on the same rounded inputs."""
    name, tensors, a = call
    arrays = [None if t is None else to_array(t) for t in tensors]
    wide = [n if n is None or n.dtype == bool else n.astype(np.float64) for n in arrays]
    if name == "rms_norm":
        return [truth.rms_norm(wide[0], wide[1], a["eps"], a["weight_offset"])]
    if name == "add_rms_norm":
        total = to_array(tensors[0] + tensors[1]).astype(np.float64)
        return [total, truth.rms_norm(total, wide[2], a["eps"], a["weight_offset"])]
    if name == "swiglu":
        return [truth.swiglu(wide[0], wide[1])]
    if name == "rope":
        return [truth.rope(wide[0], np.arange(7), 100.0, bool(a["interleaved"]), 12)]
    batch, _, seq, _ = wide[0].shape
    seen = np.tril(np.ones((batch, seq, seq), bool))
    if a["window"]:
        seen &= ~np.tril(np.ones((seq, seq), bool), -a["window"])
    if wide[3] is not None:
        seen &= wide[3][:, 0]
    return [truth.attention(*wide[:3], seen, a["scale"], a["soft_cap"])]


def verdict_of(call: Call, dtype: str) -> list[Any]:
    """Eager judged as any runtime is, an exact eager beside it: only the floor of the dtype is allowed."""
    return [
        judge(output=to_array(y), reference=r, eager=r.astype(to_array(y).dtype), inputs=None, dtype=dtype)
        for y, r in zip(run(call), by_numpy(call), strict=True)
    ]


@pytest.mark.parametrize(
    "name", ["rms_norm", "add_rms_norm", "swiglu", "rope", "attention-mask", "attention-cap"]
)
def test_opcheck_of_op_passes(name: str) -> None:
    op, tensors, attributes = call_of(name)
    torch.library.opcheck(getattr(torch.ops.tblock, op).default, tuple(tensors), attributes)


@pytest.mark.parametrize(
    "name", ["rms_norm", "add_rms_norm", "swiglu", "rope-interleaved", "attention-window"]
)
def test_opcheck_of_op_on_strided_input_passes(name: str) -> None:
    op, tensors, attributes = call_of(name)
    torch.library.opcheck(getattr(torch.ops.tblock, op).default, tuple(moved(tensors)), attributes)


@pytest.mark.parametrize("dtype", BUDGETS)
@pytest.mark.parametrize("name", OPS)
def test_op_against_numpy_float64_is_within_the_floor(name: str, dtype: str) -> None:
    for verdict in verdict_of(call_of(name, dtype), dtype):
        assert verdict.passed, verdict.reason


@pytest.mark.parametrize("name", OPS)
def test_op_in_float64_is_float64_all_the_way(name: str) -> None:
    call = call_of(name, "float64")
    for y, reference in zip(run(call), by_numpy(call), strict=True):
        assert y.dtype == torch.float64
        assert truth.error_in_units(y.numpy(), reference) <= truth.UNITS
        assert truth.error_in_units(y.float().double().numpy(), reference) > truth.UNITS


@pytest.mark.parametrize("name", OPS)
def test_op_on_strided_input_is_within_the_floor(name: str) -> None:
    op, tensors, attributes = call_of(name)
    reference = by_numpy((op, tensors, attributes))
    for y, r in zip(run((op, moved(tensors), attributes)), reference, strict=True):
        exact = r.astype(np.float32)
        verdict = judge(output=to_array(y), reference=r, eager=exact, inputs=None, dtype="float32")
        assert verdict.passed, verdict.reason


Twin = tuple[str, str, str, Callable[..., Any]]
BROKEN: dict[str, Twin] = {
    # Case, dtype, the name that the shipped body calls, what it calls instead.
    "norm-without-upcast": ("rms_norm", "float16", "_wide", lambda x: x),
    "swiglu-computed-low": ("swiglu", "float32", "_wide", torch.Tensor.half),
    "rope-computed-low": ("rope", "float32", "_wide", torch.Tensor.half),
    "soft-cap-computed-low": ("attention-cap", "float32", "_wide", torch.Tensor.half),
    "causal-one-later": (
        "attention-mask",
        "float16",
        "causal_mask",
        lambda s, t, *_: torch.ones(s, t).tril(1).bool(),
    ),
    "window-ignored": (
        "attention-window",
        "float16",
        "causal_mask",
        lambda s, t, *_: torch.ones(s, t).tril().bool(),
    ),
}


@pytest.mark.parametrize("twin", BROKEN)
def test_broken_twin_of_the_body_is_caught(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, dtype, function, broken = BROKEN[twin]
    call = call_of(name, dtype)
    if name == "rms_norm":
        call[1][0] = call[1][0] * 300
    assert all(v.passed for v in verdict_of(call, dtype))
    monkeypatch.setattr(ops, function, broken)
    assert not all(v.passed for v in verdict_of(call, dtype))


# The squares of these values overflow float16.
def test_rms_norm_of_float16_300_is_exactly_one() -> None:
    x = torch.tensor([300.0, -300.0], dtype=torch.float16).repeat(1, 2, 128)
    y = torch.ops.tblock.rms_norm(x, torch.ones(256, dtype=torch.float16), eps=1e-6, weight_offset=0.0)
    assert torch.equal(y, x / 300)


def test_rms_norm_of_float16_300_without_the_upcast_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_wide", lambda x: x)
    x = torch.tensor([300.0, -300.0], dtype=torch.float16).repeat(1, 2, 128)
    y = torch.ops.tblock.rms_norm(x, torch.ones(256, dtype=torch.float16), eps=1e-6, weight_offset=0.0)
    assert not y.any()


@pytest.mark.parametrize("eps", [1e-6, 1e-8, 1e-12])
def test_rms_norm_of_a_float16_zero_row_is_zero(eps: float) -> None:
    y = torch.ops.tblock.rms_norm(
        torch.zeros(1, 33, dtype=torch.float16),
        torch.ones(33, dtype=torch.float16),
        eps=eps,
        weight_offset=0.0,
    )
    assert torch.equal(y, torch.zeros_like(y))


def test_rms_norm_of_a_zero_row_with_eps_in_float16_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: 1e-8 is 0 in float16, and 0 / 0 is NaN."""
    monkeypatch.setattr(ops, "_wide", lambda x: x)
    weight, x = torch.ones(33, dtype=torch.float16), torch.zeros(1, 33, dtype=torch.float16)
    assert torch.ops.tblock.rms_norm(x, weight, eps=1e-8, weight_offset=0.0).isnan().all()


@pytest.mark.parametrize("soft_cap", [0.0, 30.0], ids=["plain", "soft-cap"])
@pytest.mark.parametrize("dtype", ["float64", *BUDGETS])
def test_attention_fully_masked_row_is_exactly_zero(dtype: str, soft_cap: float) -> None:
    q, k, v = (draw(2, 4, 8, 16, dtype=dtype, seed=s) for s in (0, 1, 2))
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    mask[0, 0, 0] = False
    y = torch.ops.tblock.attention(q, k, v, mask, scale=0.25, causal=0, window=0, soft_cap=soft_cap)
    assert not y[0, :, 0].any()
    assert y.isfinite().all()
    full = torch.ops.tblock.attention(q, k, v, None, scale=0.25, causal=0, window=0, soft_cap=soft_cap)
    assert judge_equal(y[1:], full[1:], dtype)


def judge_equal(y: Tensor, reference: Tensor, dtype: str) -> bool:
    """Within the floor of the dtype: the eager run beside it is the reference itself, rounded."""
    narrow = "float32" if dtype == "float64" else dtype
    output, exact = to_array(y.to(DTYPES[narrow])), to_array(reference.double())
    eager = exact.astype(output.dtype)
    return judge(output=output, reference=exact, eager=eager, inputs=None, dtype=narrow).passed


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 1), (4, 4), (9, 3)])
@pytest.mark.parametrize("soft_cap", [0.0, 30.0], ids=["plain", "soft-cap"])
def test_attention_query_head_uses_its_groups_kv_head(heads: int, kv_heads: int, soft_cap: float) -> None:
    """One key, so the output is that head's value: the number of the KV head."""
    q, k = torch.ones(1, heads, 1, 6), torch.ones(1, kv_heads, 1, 6)
    v = torch.arange(kv_heads).float()[None, :, None, None].expand(1, kv_heads, 1, 6)
    y = torch.ops.tblock.attention(q, k, v, None, scale=1.0, causal=0, window=0, soft_cap=soft_cap)
    assert y[0, :, 0, 0].tolist() == [h // (heads // kv_heads) for h in range(heads)]


def test_attention_causal_with_fewer_queries_than_keys_aligns_to_the_last_key() -> None:
    q, k, v = draw(1, 2, 3, 16), draw(1, 2, 9, 16, seed=1), draw(1, 2, 9, 16, seed=2)
    y = torch.ops.tblock.attention(q, k, v, None, scale=0.25, causal=1, window=0, soft_cap=0.0)
    seen = np.tril(np.ones((1, 9, 9), bool))[:, -3:]
    reference = truth.attention(*(to_array(t) for t in (q, k, v)), seen, 0.25)
    exact = reference.astype(np.float32)
    assert judge(output=to_array(y), reference=reference, eager=exact, inputs=None, dtype="float32").passed
    upper_left = truth.attention(*(to_array(t) for t in (q, k, v)), np.tril(np.ones((1, 3, 9), bool)), 0.25)
    assert not judge(
        output=upper_left.astype(np.float32), reference=reference, eager=exact, inputs=None, dtype="float32"
    ).passed


def test_attention_soft_cap_with_scores_above_float16_is_right() -> None:
    """q k^T is 92,160, above float16's 65,504; the scale brings it back to 0.9."""
    q = k = torch.full((1, 1, 2, 16), 75.9, dtype=torch.float16)
    k = torch.cat((k[:, :, :1], k[:, :, :1] / 2), 2)
    v = draw(1, 1, 2, 16, dtype="float16")
    options = {"scale": 1e-5, "causal": 0, "window": 0, "soft_cap": 30.0}
    call: Call = ("attention", [q, k, v, None], options)
    reference = truth.attention(*(to_array(t) for t in (q, k, v)), np.ones((1, 2, 2), bool), 1e-5, 30.0)
    output = to_array(run(call)[0])
    exact = reference.astype(np.float16)
    assert judge(output=output, reference=reference, eager=exact, inputs=None, dtype="float16").passed


@pytest.mark.parametrize(
    ("interleaved", "expected"),
    [(0, [-1.984111, 1.959901, 2.462378, 4.019800]), (1, [-1.142640, 1.922076, 2.959851, 4.029799])],
    ids=["half", "interleaved"],
)
def test_rope_of_1_2_3_4_at_position_1_is_the_published_row(interleaved: int, expected: list[float]) -> None:
    angles = torch.tensor([[1.0, 10000.0**-0.5]], dtype=torch.float64)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)[None, None, None]
    y = torch.ops.tblock.rope(x, angles.cos(), angles.sin(), interleaved=interleaved)
    last_digit_printed = 1e-6
    assert all(abs(v - e) < last_digit_printed for v, e in zip(y.flatten().tolist(), expected, strict=True))


def test_bfloat16_truth_is_rounded_by_ml_dtypes_as_torch_rounds() -> None:
    x = draw(1000)
    assert np.array_equal(to_array(x.bfloat16()), to_array(x).astype(ml_dtypes.bfloat16))
