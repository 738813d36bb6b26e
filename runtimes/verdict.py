"""The verdict: is a runtime's output right, judged against float64 and by what eager itself loses.

Owns the measure and the one table of budgets. Knows no runtime and reads no file; numpy and ml_dtypes only.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tblock.errors import ArtifactError
from tblock.runtimes.statuses import Judged

Token = tuple[int, ...]
Floats = NDArray[np.float64]

AMBIGUOUS_UP_TO = 1.5
"""Ratios above 1 and up to this are AMBIGUOUS, which does not pass; above, FAIL."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a runtime may lose in one dtype.

    Attributes:
        k: times eager's own error, or times the floor where eager is closer than that.
        floor: relative L2 distance below which eager's accuracy is luck, not merit.
        ceiling: relative L2 error of eager above which the dtype cannot hold the block, unless rounding the
            right answer makes as much; below 1 / k, so that no other budget reaches the whole of what is
            measured.
    """

    k: float
    floor: float
    ceiling: float


# Set by bench/verdict_calibration.py; distributions: bench/results/verdict-calibration.json. The floors are
# 34, 4 and 4 units of rounding: what a token needs whose norm is one or two channels (SmolLM2 layer 2), and
# in float32 a stack of 30 layers.
BUDGETS: dict[str, Budget] = {
    "float32": Budget(k=4.0, floor=2e-6, ceiling=1e-3),
    "float16": Budget(k=4.0, floor=2e-3, ceiling=0.1),
    "bfloat16": Budget(k=4.0, floor=1.6e-2, ceiling=0.2),
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What `judge` found for one output.

    Attributes:
        status: PASS; AMBIGUOUS (1 to 1.5 times the allowance, fails); FAIL; REFUSED (nothing to judge by:
            eager itself is lost in this dtype, rounding hides what the block adds, or there is nothing to
            compare).
        ratio: worst error over its allowance, 1.0 at the budget; None where nothing was measured.
        error: worst over tokens of the output's relative L2 distance from float64; None likewise.
        eager_error: the same of eager; None likewise.
        measure: what decided: the output's name (`y`), or the output minus the block's input (`y - x`).
        token: index of the deciding token, () for an output of one token; None where no token stands out.
        reason: one line.
    """

    status: Judged
    ratio: float | None
    error: float | None
    eager_error: float | None
    measure: str
    token: Token | None
    reason: str

    @property
    def passed(self) -> bool:
        """Only PASS passes."""
        return self.status == "PASS"


def judge(
    *,
    output: np.ndarray,
    reference: np.ndarray,
    eager: np.ndarray,
    inputs: np.ndarray | None,
    dtype: str,
    live: np.ndarray | None = None,
    name: str = "y",
) -> Verdict:
    """ratio = max over tokens of e_runtime / (k max(e_eager, floor)), e the relative L2 from float64.

    Taken for the output and for the output minus the input, since a residual block that does nothing is
    nearly right by any other measure; the larger counts. In the second, a channel weighs the less the more of
    the change its own rounding hides: beside a channel of 24,900, where a float16 ulp is 16, that alone is
    0.4 of what SmolLM2's layer 12 adds to its first token, and the other 575 channels show it. A token whose
    every channel hides the change allows what adds nothing; where all tokens do, that is REFUSED. No floor is
    below one step of the dtype's subnormals, so that a token that is 0 has one.

    Args:
        output: [..., D] in `dtype`, from the runtime.
        reference: [..., D] float64, the block on the same rounded weights and inputs.
        eager: [..., D] in `dtype`, from eager PyTorch.
        inputs: [..., D], the block's input x; None for an output that has no residual.
        dtype: a key of BUDGETS.
        live: [...] bool, the tokens whose values count (the others must still be finite); None: all.
        name: of the output, for the messages.

    Returns:
        The verdict. A wrong shape or dtype, NaN and Inf are FAIL; an Inf or NaN of eager's is REFUSED.

    Raises:
        ArtifactError: the dtype has no budget, or reference, eager, inputs and live do not belong together.
    """
    budget = _check_golden(reference, eager, inputs, live, dtype, name)
    if output.shape != reference.shape:
        return _unmeasured("FAIL", name, f"{name} has shape {output.shape}, wanted {reference.shape}")
    if output.dtype.name != dtype:
        return _unmeasured("FAIL", name, f"{name} is {output.dtype.name}, wanted {dtype}")
    wide, wide_eager = output.astype(np.float64), eager.astype(np.float64)
    broken = (
        _not_finite("FAIL", reference, name, f"{name}: the float64 reference is not finite")
        or _not_finite(
            "REFUSED", wide_eager, name, f"{dtype} overflows in this block: eager's {name} is not finite"
        )
        or _not_finite("FAIL", wide, name, f"{name} is not finite")
    )
    if broken:
        return broken

    alive = np.ones(reference.shape[:-1], bool) if live is None else live
    measures = _measures(wide, wide_eager, reference, inputs, dtype, name)
    for m in measures:
        if not m.scale[alive].any() and not m.error[alive].any():
            nothing = f"{m.name} is all zero" if alive.any() else "no token is live"
            return _unmeasured("REFUSED", m.name, f"{nothing}: agreement would prove nothing")

    whole = measures[0]
    worst = {
        "error": _worst(whole.error, whole.scale, alive),
        "eager_error": _worst(whole.eager, whole.scale, alive),
    }
    for m in measures:
        lost = alive & (m.eager > np.maximum(budget.ceiling * m.scale, budget.k * m.rounding))
        blind = m.allowance >= m.scale
        why = f"ceiling {budget.ceiling:g}"
        if not lost.any() and blind[alive].all() and m.scale[alive].any():
            lost, why = alive, "at every token a block that adds nothing would be within the allowance"
        if lost.any():
            token = _first(lost)
            off = f"eager's own {m.name} is off by {_ratio(m.eager, m.scale)[token]:.2g}"
            reason = f"{dtype} loses this block at token {token}: {off}, {why}"
            return Verdict(status="REFUSED", ratio=None, measure=m.name, token=token, reason=reason, **worst)

    ratios = [np.where(alive, m.error / m.allowance, 0.0) for m in measures]
    ratio = float(max(part.max() for part in ratios))
    m, part = next((m, part) for m, part in zip(measures, ratios, strict=True) if part.max() == ratio)
    token = _first(part == ratio)
    here, eager_here, floor_here = (_ratio(p, m.scale)[token] for p in (m.error, m.eager, m.floor))
    reason = (
        f"{m.name} at token {token}: off by {here:.2g}, {ratio:.2g} of the allowance "
        f"{budget.k:g} x max(eager {eager_here:.2g}, floor {floor_here:.2g})"
    )
    status: Judged = "PASS" if ratio <= 1.0 else "AMBIGUOUS" if ratio <= AMBIGUOUS_UP_TO else "FAIL"
    return Verdict(status=status, ratio=ratio, measure=m.name, token=token, reason=reason, **worst)


@dataclass(frozen=True, kw_only=True)
class _Measure:
    """One comparison: L2 over the last axis for each token, [...] float64 each.

    Attributes:
        name: `y`, or `y - x`.
        error, eager: of the runtime and of eager, from float64.
        scale: of what is compared.
        rounding: what rounding the right answer to the dtype is expected to make of it.
        floor, allowance: the budget in these units.
    """

    name: str
    error: Floats
    eager: Floats
    scale: Floats
    rounding: Floats
    floor: Floats
    allowance: Floats


def _measures(
    output: Floats, eager: Floats, reference: Floats, inputs: np.ndarray | None, dtype: str, name: str
) -> list[_Measure]:
    """The output, and the output minus the input where there is one."""
    budget, rounding = BUDGETS[dtype], _rounding_error(reference, dtype)
    step = float(ml_dtypes.finfo(dtype).smallest_subnormal) * np.sqrt(reference.shape[-1])
    found = []
    compared: list[tuple[str, Any, Floats]] = [(name, 1.0, reference)]
    if inputs is not None:
        change = reference - inputs.astype(np.float64)
        # What the floor gives each channel, against what rounding takes from it.
        share = np.maximum(budget.floor * _norm(change), step)[..., None] / np.sqrt(reference.shape[-1])
        compared.append((f"{name} - x", share / np.hypot(share, rounding), change))
    for measure, weight, what in compared:
        scale, own = _norm(weight * what), _norm(weight * (eager - reference))
        floor = np.maximum(budget.floor * scale, step)
        found.append(
            _Measure(
                name=measure,
                error=_norm(weight * (output - reference)),
                eager=own,
                scale=scale,
                rounding=np.maximum(_norm(weight * rounding), step),
                floor=floor,
                allowance=budget.k * np.maximum(own, floor),
            )
        )
    return found


def _check_golden(
    reference: np.ndarray,
    eager: np.ndarray,
    inputs: np.ndarray | None,
    live: np.ndarray | None,
    dtype: str,
    name: str,
) -> Budget:
    if dtype not in BUDGETS:
        raise ArtifactError(f"{name}: no budget for dtype {dtype!r}; known: {', '.join(BUDGETS)}")
    for what, array, wanted in (("reference", reference, "float64"), ("eager", eager, dtype)):
        if array.dtype.name != wanted:
            raise ArtifactError(f"{name}: {what} is {array.dtype.name}, wanted {wanted}; export again")
    tokens = reference.shape[:-1]
    for what, given, shape in (
        ("eager", eager, reference.shape),
        ("inputs", inputs, reference.shape),
        ("live", live, tokens),
    ):
        if given is not None and given.shape != shape:
            raise ArtifactError(f"{name}: {what} has shape {given.shape}, the reference wants {shape}")
    return BUDGETS[dtype]


def _unmeasured(status: Judged, measure: str, reason: str, token: Token | None = None) -> Verdict:
    return Verdict(
        status=status, ratio=None, error=None, eager_error=None, measure=measure, token=token, reason=reason
    )


def _not_finite(status: Judged, array: Floats, measure: str, reason: str) -> Verdict | None:
    """A verdict where some token has NaN or Inf, live or not."""
    lost = np.asarray(~np.isfinite(array).all(axis=-1))
    if not lost.any():
        return None
    token = _first(lost)
    what = "NaN" if np.isnan(array[token]).any() else "Inf"
    return _unmeasured(status, measure, f"{reason} at token {token} ({what})", token)


def _norm(array: Floats) -> Floats:
    """L2 over the last axis, [..., D] to [...]."""
    return np.asarray(np.linalg.norm(array, axis=-1))


def _rounding_error(reference: Floats, dtype: str) -> Floats:
    """Expected error of rounding each value: an error uniform within an ulp has variance ulp^2 / 12.

    Args:
        reference: [..., D] float64.
        dtype: to round to.

    Returns:
        [..., D] float64. Not the error of this very reference, which may be 0 by luck.
    """
    info = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(reference)
    ulp = np.maximum(np.ldexp(float(info.eps), exponent - 1), float(info.smallest_subnormal))
    return np.asarray(ulp / np.sqrt(12.0))


def _ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole, where 0 / 0 = 0: a token that is 0 in the reference and in the output is right."""
    return np.divide(part, whole, out=np.where(part > 0.0, np.inf, 0.0), where=whole > 0.0)


def _worst(part: Floats, whole: Floats, alive: NDArray[np.bool_]) -> float | None:
    """The largest part / whole over live tokens; None where that is infinite (JSON has no such number)."""
    worst = float(_ratio(part, whole)[alive].max())
    return worst if np.isfinite(worst) else None


def _first(mask: NDArray[np.bool_]) -> Token:
    """Index of the first True."""
    return tuple(int(i) for i in np.unravel_index(np.argmax(mask), mask.shape))
