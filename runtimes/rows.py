"""The rows that check and bench report, JSON-ready. Imports only the standard library."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from tblock.errors import RuntimeUnavailable, TblockError
from tblock.runtimes.statuses import EXIT_CODES, Judged, Status


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
    status: Judged
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
        notes: what the verdict does not cover, a line each: cases outside the target's own limits, weights
            whose import nobody compared.
        exit_code: what the command line makes of this row alone, EXIT_CODES or the error's own.
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
    notes: tuple[str, ...] = ()
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
        tuples = {name: tuple(fields[name]) for name in ("shapes", "notes")}
        return cls(**{**fields, **tuples, "cases": cases})

    @classmethod
    def without_cases(cls, runtime: str, status: Status, reason: str) -> "CheckRow":
        """The row of a runtime that judged nothing."""
        return cls(runtime=runtime, status=status, reason=reason, exit_code=EXIT_CODES[status])

    @classmethod
    def of_error(cls, runtime: str, error: TblockError) -> "CheckRow":
        """The row of a runtime that raised."""
        status: Status = "UNAVAILABLE" if isinstance(error, RuntimeUnavailable) else "ERROR"
        return cls(runtime=runtime, status=status, reason=str(error), exit_code=error.exit_code)


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One runtime timed at one shape.

    Attributes:
        case: letters and sizes, `B1 S128`.
        runtime, provider, dtype: what ran where.
        device: name of the CPU or GPU.
        threads: CPU threads; None on a GPU.
        status: of the check that came first and of what the timed calls themselves gave; times are there
            only for PASS.
        reason: why there are no times; empty where there are.
        median_s, p10_s, p90_s: seconds of one call.
        iterations: calls measured.
        covers: what one call includes, in words.
        judged_by: what the outputs of the timed calls were compared with.
        notes: why not to trust the times, a line each: the CPU is shared or limited.
        flops: of one call (BlockConfig.flop_count over all blocks).
        bytes: at least moved by one call: every weight, input and output once.
        versions: package to version.
        commit: of the tblock source tree; None where it is not a git checkout.
        time: when it was measured, UTC, ISO 8601.
        exit_code: as CheckRow's.
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
    covers: str = ""
    judged_by: str = ""
    notes: tuple[str, ...] = ()
    flops: int
    bytes: int
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    time: str = ""
    exit_code: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "BenchRow":
        """The inverse of to_dict."""
        return cls(**{**fields, "notes": tuple(fields["notes"])})
