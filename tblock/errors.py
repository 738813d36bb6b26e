"""The error types of tblock: few, and each message is one line (where, got, wanted, what to do next).

Owns the mapping from error type to process exit code; imports only the standard library.
"""

import re


class TblockError(Exception):
    """Base of every error tblock raises on purpose.

    Attributes:
        exit_code: what the command line exits with when this error reaches it.
    """

    exit_code = 2


class ConfigError(TblockError, ValueError):
    """A BlockConfig, preset, checkpoint or flag that makes no sense (exit 2)."""


class ArtifactError(TblockError):
    """An artifact folder or input tensor that is missing, damaged or outside the manifest (exit 2)."""


class RuntimeUnavailable(TblockError):
    """A runtime, tool or optional package that this machine lacks (exit 3); names what brings it."""

    exit_code = 3


class ExportError(TblockError):
    """Lowering or building failed, or would give a wrong answer and was refused (exit 4)."""

    exit_code = 4


class ParityError(TblockError):
    """A runtime's output is outside the float64 budget (exit 1)."""

    exit_code = 1


_COMPLAINTS = (r"^.*(?:\berror: |fatal error: |No space left|cannot find ).*$", r"(?<=^Output:\n).+$")


def compiler_error(error: BaseException) -> str | None:
    """What a C++ compiler said, where that stands in an error's many lines: its first complaint."""
    found = (re.search(pattern, str(error), re.MULTILINE) for pattern in _COMPLAINTS)
    return next((" ".join(said[0].split())[:400] for said in found if said), None)


def reason(error: BaseException) -> str:
    """Why a library failed: the innermost cause's first line, or its type where it says nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    return compiler_error(error) or (str(error).strip() or type(error).__name__).splitlines()[0]
