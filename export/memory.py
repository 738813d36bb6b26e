"""Peak memory of a stage of the export, read from the kernel. Linux; elsewhere the report says unknown."""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Stage:
    """What one stage took.

    Attributes:
        seconds: wall clock.
        peak_bytes: highest resident memory above the baseline given; None where the kernel does not tell.
    """

    seconds: float = 0.0
    peak_bytes: int | None = None


def load_libraries() -> None:
    """Load what torch and onnx load on first use, so that a baseline taken now has all of it."""
    import onnxscript  # noqa: F401
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.onnx._internal.exporter._core

    torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2))


def resident_bytes() -> int | None:
    """Resident memory of this process now (bytes)."""
    return _field("VmRSS")


@contextlib.contextmanager
def measured(baseline: int | None) -> Iterator[Stage]:
    """Measure a block of code.

    Args:
        baseline: resident bytes to count from (the process with its libraries loaded).
    """
    stage, start = Stage(), time.perf_counter()
    try:
        _RESET.write_text("5", encoding="utf-8")
        reset = True
    except OSError:
        reset = False
    try:
        yield stage
    finally:
        stage.seconds = time.perf_counter() - start
        peak = _field("VmHWM")
        if reset and peak is not None and baseline is not None:
            stage.peak_bytes = max(peak - baseline, 0)


def _field(name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
