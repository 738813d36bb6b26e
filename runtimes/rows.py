"""The rows that check and bench report, JSON-ready. Imports only the standard library."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["PASS", "AMBIGUOUS", "FAIL", "REFUSED", "UNAVAILABLE", "ERROR", "NOT BUILT"]
"""PASS to REFUSED are verdicts (tblock.runtimes.verdict); UNAVAILABLE: something is missing on this machine;
ERROR: it broke; NOT BUILT: the artifact has no such target."""

WORST_FIRST: tuple[Status, ...] = (
    "ERROR",
    "FAIL",
    "AMBIGUOUS",
    "REFUSED",
    "UNAVAILABLE",
    "NOT BUILT",
    "PASS",
)


@dataclass(frozen=True, kw_only=True)
class CaseRow:
    """The verdict on one golden case.

    Attributes:
        case: letters and sizes, `B2 S7`, with a number behind where several cases share them.
        status: the worst over its outputs.
        ratio: error over budget, 1 at the budget; None where nothing could be measured.
        error, eager_error: worst relative L2 distance of a token from float64, of the runtime and of eager.
        where: output and token that decided.
        reason: the verdict's line.
    """

    case: str
    status: Status
    ratio: float | None
    error: float | None
    eager_error: float | None
    where: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """What checking one runtime found.

    Attributes:
        runtime: a key of RUNTIMES.
        status: the worst over its cases, or why there are none.
        ratio, error, eager_error: the worst over its cases, as in CaseRow.
        where: case, output and token of the worst ratio.
        reason: one line; empty where it passed.
        shapes: of the cases that ran.
        provider: where it computed; empty where it did not.
        cases: each golden case.
        details: what the runner recorded (node placement, graphs compiled, ...).
        exit_code: what the command line makes of this row alone: 0 fine, 1 parity missed, 2 wrong use or a
            damaged file, 3 something missing here, 4 it broke.
    """

    runtime: str
    status: Status
    ratio: float | None = None
    error: float | None = None
    eager_error: float | None = None
    where: str = ""
    reason: str = ""
    shapes: tuple[str, ...] = ()
    provider: str = ""
    cases: tuple[CaseRow, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0

    @property
    def passed(self) -> bool:
        """Only PASS passes."""
        return self.status == "PASS"

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "CheckRow":
        """The inverse of to_dict, also after a way through JSON."""
        cases = tuple(CaseRow(**case) for case in fields["cases"])
        return cls(**{**fields, "shapes": tuple(fields["shapes"]), "cases": cases})


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One runtime timed at one shape.

    Attributes:
        case: letters and sizes, `B1 S128`.
        runtime, provider, dtype: what ran where.
        device: name of the CPU or GPU.
        threads: CPU threads; None on a GPU.
        status: of the check that came first; times are there only for PASS.
        reason: why there are no times; empty where there are.
        median_s, p10_s, p90_s: seconds of one call, inputs in place.
        iterations: calls measured.
        flops: of one call (BlockConfig.flop_count over all blocks).
        bytes: at least moved by one call: every weight, input and output once.
        versions: package to version.
        commit: of the tblock source tree; None where it is not a git checkout.
        time: when it was measured, UTC, ISO 8601.
    """

    case: str
    runtime: str
    provider: str
    dtype: str
    device: str
    threads: int | None
    status: Status
    reason: str = ""
    median_s: float | None = None
    p10_s: float | None = None
    p90_s: float | None = None
    iterations: int = 0
    flops: int
    bytes: int
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    time: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "BenchRow":
        """The inverse of to_dict."""
        return cls(**fields)
