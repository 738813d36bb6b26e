"""What a call of the command line ended with."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What a call ended with."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> list[str]:
        """Lines of stderr that are no progress."""
        return [line for line in self.err.splitlines() if not line.startswith("... ")]


Run = Callable[..., Outcome]
