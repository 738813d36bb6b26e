"""The statuses of check and bench: one table, with what the command line exits with for each.

Imports only the standard library.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

Judged = Literal["PASS", "AMBIGUOUS", "FAIL", "REFUSED"]
"""What a verdict can be (tblock.runtimes.verdict)."""

Status = Literal["PASS", "AMBIGUOUS", "FAIL", "REFUSED", "UNAVAILABLE", "ERROR", "NOT BUILT"]
"""A verdict, or why there is none: UNAVAILABLE: something is missing on this machine; ERROR: it broke; NOT
BUILT: the artifact has no such target."""

EXIT_CODES: dict[Status, int] = {
    "ERROR": 4,
    "FAIL": 1,
    "AMBIGUOUS": 1,
    "REFUSED": 1,
    "UNAVAILABLE": 3,
    "NOT BUILT": 2,
    "PASS": 0,
}
"""Worst first; an ERROR that is one of tblock.errors has that error's own code instead."""

ABSENT: tuple[Status, ...] = ("UNAVAILABLE", "NOT BUILT")
"""No failure, unless the runtime was asked for by name."""


class Row(Protocol):
    """What a row of check and of bench have in common."""

    @property
    def status(self) -> Status: ...

    @property
    def exit_code(self) -> int: ...


def badness(status: Status, ratio: float | None) -> tuple[int, float]:
    """A sort key: the worst status first, the highest ratio first among equals."""
    return list(EXIT_CODES).index(status), -(ratio or 0.0)


def exit_code(rows: Sequence[Row] | Iterable[Row], *, asked: bool) -> int:
    """What rows exit with together: 1 where parity was missed, otherwise the highest code.

    Args:
        rows: of check or of bench.
        asked: whether the runtimes were named; then an absent one counts.
    """
    rows = list(rows)
    # Nothing ran at all: that must not look like a pass.
    asked = asked or all(row.status in ABSENT for row in rows)
    codes = [row.exit_code for row in rows if asked or row.status not in ABSENT]
    return 1 if 1 in codes else max(codes, default=0)
