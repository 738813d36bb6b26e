"""Crash-safe writing of an artifact folder: all or nothing, and an old one stays whole until then.

Files are written to a hidden folder beside the target; at the end it takes the target's name in one system
call: a rename where there was none, an exchange (Linux renameat2) where there was one.
"""

import contextlib
import ctypes
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from tblock.errors import ConfigError, ExportError, reason
from tblock.manifest import NAME

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def check_output(output: Path, force: bool) -> None:
    """Refuse a target before any work is done.

    Raises:
        ConfigError: it exists (without force), is not an artifact of ours (with force), or cannot be created.
    """
    try:
        _check_output(output, force)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror or error}") from None


def _check_output(output: Path, force: bool) -> None:
    if output.exists() or output.is_symlink():
        if not force:
            raise ConfigError(f"--output {output}: exists; give another folder, or --force to replace it")
        if output.is_symlink() or not output.is_dir():
            raise ConfigError(f"--output {output}: is not a folder; --force replaces only artifact folders")
        if any(output.iterdir()) and not (output / NAME).is_file():
            raise ConfigError(f"--output {output}: has no {NAME}; --force replaces only artifact folders")
    parent = output.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--output {output}: {parent} is not a writable folder")


@contextlib.contextmanager
def staged_folder(output: Path, force: bool) -> Iterator[Path]:
    """A folder to write to, which becomes `output` when the block ends without an error, else vanishes.

    Raises:
        ConfigError: as `check_output`.
        ExportError: the disk is full or a write failed; the old artifact is intact.
    """
    check_output(output, force)
    output = output.absolute()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}") from None
    try:
        yield staging
        _sync(staging)
        mask = _umask()
        staging.chmod(0o777 & ~mask)
        for path in staging.iterdir():
            path.chmod(0o666 & ~mask)
        _take_place(staging, output)
    except (OSError, SafetensorError) as error:
        raise write_error(output, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_error(output: Path, error: OSError | SafetensorError) -> ExportError:
    """One line for a failed write, which says that nothing was lost."""
    code = error.errno if isinstance(error, OSError) else _errno(error)
    full = code in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else os.strerror(code) if code else reason(error)
    kept = "the old artifact is intact" if output.exists() else "nothing was left behind"
    return ExportError(f"--output {output}: {what}; {kept}")


def _errno(error: SafetensorError) -> int | None:
    """The system's number in a message of safetensors, whose errors are no OSError."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _take_place(staging: Path, output: Path) -> None:
    if not output.exists():
        staging.rename(output)
        return
    if not _exchange(staging, output):
        # Without renameat2 (not Linux, or an old filesystem) there is a moment with no artifact, never with
        # half of one.
        backup = staging.with_name(staging.name + ".old")
        output.rename(backup)
        try:
            staging.rename(output)
        except OSError:
            backup.rename(output)
            raise
        shutil.rmtree(backup, ignore_errors=True)


def _exchange(left: Path, right: Path) -> bool:
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return renameat2(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE) == 0


def _sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
