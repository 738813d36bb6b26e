"""TensorRT's log and progress callbacks as plain lines: errors kept for the message, warnings for the
report."""

import re
import sys
from collections.abc import Callable
from typing import Any

_NOISE = (
    # Function bodies repeat their node names; only a query by name would mind, and nobody asks.
    "already exists, the output tensors of this new instance",
    "Thread context has not been set",
    # Printed by RTX for options that engine_package has already settled.
    "is unsupported in TensorRT-RTX",
)
_LONGEST = 300


class Log:
    """Collects what a package logs while one engine is built.

    Attributes:
        logger: to hand to the package.
    """

    def __init__(self, trt: Any) -> None:
        self._errors: list[str] = []
        self._warnings: list[str] = []
        errors, warnings = self._errors, self._warnings

        class _Logger(trt.ILogger):
            """An exception in here would end the process, so nothing in it can fail."""

            def log(self, severity: Any, text: str) -> None:
                line = " ".join(text.split())[:2000]
                if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                    errors.append(line)
                    print(f"[E] {line}", file=sys.stderr, flush=True)
                elif severity == trt.ILogger.Severity.WARNING:
                    warnings.append(line)

        self.logger = _Logger()

    def settle(self) -> str:
        """The first error, which a second attempt is about to answer; errors so far are forgotten."""
        first = self.first_error()
        self._errors.clear()
        return first

    def warn(self, line: str) -> None:
        """Add a warning of ours."""
        self._warnings.append(line)

    def first_error(self) -> str:
        """The first error that is not a mere consequence, without the source places in it."""
        real = [line for line in self._errors if not any(noise in line for noise in _NOISE)]
        if not real:
            return "it does not say why"
        line = re.sub(r"\s*In \w+ at /_src/\S+\)?", "", real[0])
        return line[:_LONGEST]

    def warnings(self) -> list[str]:
        """Each once, without what means nothing to a user."""
        lines = [line for line in self._warnings if not any(noise in line for noise in _NOISE)]
        return [line[:_LONGEST] for line in dict.fromkeys(lines)]


def make_monitor(trt: Any, report: Callable[[str], None]) -> Any:
    """A progress monitor that reports the builder's top phases, or None where the package has none."""
    if not hasattr(trt, "IProgressMonitor"):
        return None

    class _Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            super().__init__()
            self._top: str | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if parent_phase is None:
                self._top = phase_name
            if parent_phase is None or parent_phase == self._top:
                report(f"{phase_name} ({num_steps} steps)")

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            return True

    return _Monitor()
