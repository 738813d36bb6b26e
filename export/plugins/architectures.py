"""The GPU architectures that the kernels are compiled for. Imports only `tblock.errors`."""

from collections.abc import Iterable

from tblock.errors import ConfigError

PTX_VERSIONS = {80: 80, 86: 80, 87: 80, 89: 80, 90: 80, 100: 86, 103: 88, 120: 87, 121: 88}
"""Compute capability to the lowest PTX version that knows it: drivers as old as possible load it (8.0 is
CUDA 12.0)."""

BASELINE = 80
"""Lowest compute capability; its PTX is what every newer architecture can be compiled from at load."""

DEFAULT_CUBINS = (90, 120)
"""What gets machine code unless something else is asked for."""


def check(cubins: Iterable[int]) -> tuple[int, ...]:
    """The same, sorted and without repeats.

    Raises:
        ConfigError: an architecture that the kernels do not run on, or none at all.
    """
    chosen = tuple(sorted(set(cubins)))
    for arch in chosen:
        if arch not in PTX_VERSIONS:
            why = (
                f"below sm_{BASELINE}, which the kernels need" if arch < BASELINE else "no such architecture"
            )
            raise ConfigError(f"--cubins {arch}: {why}; known: {', '.join(map(str, PTX_VERSIONS))}")
    return chosen


def parse(text: str) -> tuple[int, ...]:
    """From a comma list such as `90,120` or `sm_90`; an empty one leaves only the PTX.

    Raises:
        ConfigError: as check, or not a list of numbers.
    """
    parts = [part.strip().removeprefix("sm_") for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"--cubins {text!r}: wanted a comma list of numbers, such as 90,120")
    return check(map(int, parts))
