"""stdout and stderr that do not end the work: closed, full, without a reader, or of a narrow encoding.

What could not be written is said at the end, once the work is done.
"""

import errno
import os
import sys
from typing import Any

from tblock.errors import ConfigError


class Stream:
    """A text stream that takes what its file does not, and remembers why.

    Attributes:
        failed: the first error of the file; None while it takes everything.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.failed: OSError | None = None

    def write(self, text: str) -> int:
        """As a file's; after an error nothing more is written."""
        self._try(self._file.write, text)
        return len(text)

    def flush(self) -> None:
        """As a file's."""
        self._try(self._file.flush)

    def _try(self, act: Any, *given: str) -> None:
        try:
            if self.failed is None:
                act(*given)
        except OSError as error:
            self.failed = error
            # What the file still holds would fail again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def guard() -> Stream:
    """Put such streams in place of the process's own.

    Returns:
        The one of stdout.
    """
    for name in ("stdout", "stderr"):
        # A stream that was closed before is None; its number must not go to the next file that is opened.
        file = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        file = file._file if isinstance(file, Stream) else file
        if hasattr(file, "reconfigure"):
            file.reconfigure(errors="backslashreplace")
        setattr(sys, name, Stream(file))
    return sys.stdout  # type: ignore[return-value]


def require_written(out: Stream) -> None:
    """Raise ConfigError where the report could not be written although somebody waits for it."""
    out.flush()
    if out.failed is not None and out.failed.errno != errno.EPIPE:
        raise ConfigError(f"stdout: {out.failed.strerror}; the report was not written")
