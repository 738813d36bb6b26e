"""Writing files of the user's: refused before the work where it cannot succeed, whole or not at all, and
errors of the disk in one line. Imports only the standard library.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tblock.errors import ConfigError, ExportError

_MOST_JSON = 256 << 20
"""Bytes. The largest known file is the index of a sharded mixture, a few MB."""


def check_writable_file(path: Path, where: str = "") -> None:
    """Refuse, before any work, a path that no file can be renamed to.

    Args:
        path: of the file to come; its folder must exist.
        where: the flag, named in front of the message.

    Raises:
        ConfigError: a folder, or in a folder that is missing or cannot be written.
    """
    name = f"{where} {path}".strip()
    if path.is_dir():
        raise ConfigError(f"{name}: is a folder, wanted a path for a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{name}: no such folder {path.parent}")
    try:
        # Permission bits say too little: /proc and read-only mounts look writable to root.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ConfigError(
            f"{name}: the folder {path.parent} cannot be written ({disk_error(error)})"
        ) from None


@contextlib.contextmanager
def whole_file(target: Path, where: str = "") -> Iterator[Path]:
    """A path to write to, which becomes `target` when the block ends without an error, else vanishes.

    Args:
        target: the file; its folder exists.
        where: the flag, named in front of the message.

    Raises:
        ExportError: the disk is full or a write failed; the file at the path is as it was.
    """
    fresh = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield fresh
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(fresh, target)
    except OSError as error:
        raise ExportError(f"{where} {target}: {disk_error(error)}; nothing was changed".strip()) from error
    finally:
        fresh.unlink(missing_ok=True)


def read_json(path: Path, *, pipe: bool = False) -> Any:
    """A JSON file of the user's, or of an artifact.

    Args:
        path: the file.
        pipe: it may also be a pipe, as a shell's `<(...)` is.

    Raises:
        OSError: it cannot be read.
        ValueError: not a regular file, too large, not UTF-8, not JSON, nested too deep, or text that UTF-8
            cannot hold.
    """
    if path.exists() and not (path.is_file() or pipe):
        raise ValueError("not a regular file")
    with path.open("rb") as file:
        data = file.read(_MOST_JSON + 1)
    if len(data) > _MOST_JSON:
        raise ValueError(f"more than {_MOST_JSON >> 20} MiB")
    try:
        value = json.loads(data.decode("utf-8"))
        # Half of a surrogate pair, which JSON can spell and UTF-8 cannot.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def disk_error(error: OSError) -> str:
    """What the system said, in words: which file, and that a disk is full where it is."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else error.strerror or str(error)
    return f"{what} ({error.filename})" if full and error.filename else what


def system_error(error: BaseException) -> OSError | None:
    """The system's own error: the one given, or that whose number stands in a message of safetensors."""
    if isinstance(error, OSError):
        return error if error.errno is not None else None
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes that would change it; waits for the one that does.

    A filesystem without locks lets everybody in.

    Raises:
        OSError: no such folder.
    """
    while True:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another folder may have taken the name while this process waited.
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                yield
                return
        finally:
            os.close(descriptor)
