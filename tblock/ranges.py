"""Declared ranges of the dynamic dimensions: min, opt, max of B and S (and P once there is a cache).

Owns the spelling of a range on the command line and its checks. Imports only the standard library.
"""

import re
from dataclasses import dataclass

from tblock.errors import ConfigError

LETTERS = {"B": "batch", "S": "seq", "P": "past"}
"""Dimension letter to the flag that sets its range."""


@dataclass(frozen=True)
class Range:
    """One dimension may be min .. max (inclusive); opt is what engines are tuned for."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.opt <= self.max:
            raise ConfigError(f"range {self}: wanted 0 <= MIN <= OPT <= MAX")

    def __str__(self) -> str:
        return f"{self.min}:{self.opt}:{self.max}"

    def __contains__(self, size: int) -> bool:
        return self.min <= size <= self.max

    @classmethod
    def parse(cls, text: str, where: str) -> "Range":
        """Read `MIN:OPT:MAX`, `MIN:MAX` (opt is MAX) or one number (all three).

        Args:
            text: as typed.
            where: the flag, named in front of the message.

        Raises:
            ConfigError: not such a text, or out of order.
        """
        parts = text.split(":")
        plain = all(re.fullmatch("-?[0-9]+", part) for part in parts)
        numbers = [int(part) for part in parts] if plain else []
        if not 1 <= len(numbers) <= 3:
            raise ConfigError(f"{where} {text!r}: wanted MIN:OPT:MAX, MIN:MAX or one number")
        low, high = numbers[0], numbers[-1]
        opt = numbers[1] if len(numbers) == 3 else high
        if low < 1 and where != "--past":
            raise ConfigError(f"{where} {text!r}: MIN must be at least 1")
        if not 0 <= low <= opt <= high:
            raise ConfigError(f"{where} {text!r}: wanted MIN <= OPT <= MAX")
        return cls(low, opt, high)
