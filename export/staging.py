"""Crash-safe writing of an artifact folder: all or nothing, and an old one stays whole until then.

Files are written to a hidden folder beside the target, which at the end takes the target's name in one system
call (Linux renameat2): a rename that replaces nothing, or an exchange with an artifact of ours. What is not
ours is never touched, whenever it came there. A hidden folder is locked by its owner; one that nobody holds
any more was left by a process that was killed, and goes with the next export.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from tblock.errors import ArtifactError, ConfigError, ExportError, reason
from tblock.files import disk_error, locked, system_error
from tblock.manifest import NAME, read_artifact

_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
"""Flags of renameat2 (linux/fs.h)."""

SUFFIX = ".tblock"
"""Of a hidden folder that is being written: `.<output>.<8 random characters>.tblock`."""

_ADDED = len("..12345678") + len(SUFFIX)
_NAME_MAX = 255
"""Bytes of a file's name on Linux (limits.h)."""

_WRITTEN = re.compile(r"\.?(golden|manifest|model|weights)\..+|\.aoti-.+")
"""Names in a folder that a killed export leaves; one that holds anything else is somebody's own."""

LEFTOVER = re.compile(r"\.(manifest|model)\..+\.part|model\.(trt|rtx)\.[0-9a-f]{12}\.engine")
"""Names that only a killed process of ours leaves in an artifact folder; they stand in no manifest."""


def check_output(output: Path, force: bool) -> None:
    """Refuse a target before any work is done.

    Raises:
        ConfigError: it exists (without force), is not an artifact of ours and nothing else (with force), or
            cannot be created.
    """
    text = os.fsencode(output).decode("utf-8", "backslashreplace")
    if text != str(output):
        raise ConfigError(f"--output {text}: not {sys.getfilesystemencoding()} text; give another path")
    if len(os.fsencode(output.name)) + _ADDED > _NAME_MAX:
        raise ConfigError(f"--output {output}: the name is too long; give at most {_NAME_MAX - _ADDED} bytes")
    try:
        reason = _occupied(output, force)
        if reason:
            raise ConfigError(f"--output {output}: {reason}")
        if output.is_dir() and Path.cwd().is_relative_to(output.resolve()):
            raise ConfigError(f"--output {output}: holds the current folder; replace it from outside")
        parent = output.absolute().parent
        while not parent.exists() and not parent.is_symlink():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise ConfigError(f"--output {output}: {parent} is not a writable folder")
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror or error}") from None


def _occupied(output: Path, force: bool) -> str | None:
    """Why the path cannot be taken; None where it is free, or holds what may be replaced."""
    if not (output.exists() or output.is_symlink()):
        return None
    if not force:
        return "exists; give another folder, or --force (force=True) to replace it"
    only = "--force replaces only artifact folders"
    if output.is_symlink() or not output.is_dir():
        return f"is not a folder; {only}"
    entries = sorted(output.iterdir())
    if not entries:
        return None
    if not (output / NAME).is_file():
        return f"has no {NAME}; {only}"
    try:
        files = read_artifact(output).manifest.files
    except ArtifactError as error:
        return f"is not an artifact of ours ({error}); {only}"
    for path in entries:
        ours = path.name == NAME or path.name in files or LEFTOVER.fullmatch(path.name)
        if not ours or (path.is_dir() and not path.is_symlink()):
            return f"holds {path.name}, which is no file of the artifact; move it, or give another folder"
    return None


@contextlib.contextmanager
def staged_folder(output: Path, force: bool) -> Iterator[Path]:
    """A folder to write to, which becomes `output` when the block ends without an error, else vanishes.

    Raises:
        ConfigError: as `check_output`.
        ExportError: the disk is full or a write failed: the old artifact is intact; or somebody took the path
            meanwhile: what he put there is intact, and the message says where the artifact is.
    """
    check_output(output, force)
    output = output.absolute()
    made: list[Path] = []
    try:
        made = _make_parents(output.parent)
        with locked(output.parent):
            _sweep(output)
            staging, lock = _make_staging(output)
    except OSError as error:
        _remove_empty(made)
        raise ConfigError(f"--output {output}: {error.strerror}") from None
    placed = False
    try:
        yield staging
        _sync(staging)
        mask = _umask()
        staging.chmod(0o777 & ~mask)
        for path in staging.iterdir():
            path.chmod(0o666 & ~mask)
        _take_place(staging, output, force)
        placed = True
    except (OSError, SafetensorError) as error:
        raise write_error(output, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)
        if not placed:
            _remove_empty(made)


def write_error(output: Path, error: OSError | SafetensorError) -> ExportError:
    """One line for a failed write: what the system said, and that nothing was lost."""
    system = system_error(error)
    what = reason(error) if system is None else disk_error(system)
    named = None if system is None or not system.filename else Path(os.fsdecode(system.filename))
    if named and not named.is_relative_to(output.parent):
        what = f"{named}: {what}"
    kept = "the old artifact is intact" if output.exists() else "nothing was left behind"
    return ExportError(f"--output {output}: {what}; {kept}")


def _make_parents(parent: Path) -> list[Path]:
    """Create a folder and those above it; the new ones, deepest first."""
    missing = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _make_staging(output: Path) -> tuple[Path, int]:
    """A locked hidden folder. The caller holds the one it is in: none is swept before it is locked."""
    made = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=SUFFIX, dir=output.parent))
    lock = os.open(made, os.O_RDONLY)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return made, lock


def _sweep(output: Path) -> None:
    """Remove what killed exports to this path left: hidden folders that no process holds."""
    name = re.compile(rf"\.{re.escape(output.name)}\.[a-z0-9_]{{8}}{re.escape(SUFFIX)}")
    for path in output.parent.iterdir():
        if not name.fullmatch(path.name):
            continue
        # Somebody else's, gone meanwhile, or on a filesystem without locks: left alone.
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if all(_WRITTEN.fullmatch(held.name) for held in path.iterdir()):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _take_place(staging: Path, output: Path, force: bool) -> None:
    if _renameat2(staging, output, _RENAME_NOREPLACE):
        return
    why = _occupied(output, force)
    if why:
        kept = _free_name(output, "new")
        staging.rename(kept)
        raise ExportError(
            f"--output {output}: {why.split(';')[0]} now, made by somebody else; nothing of it was touched, "
            f"the artifact is in {kept}"
        )
    with locked(output):
        if not _renameat2(staging, output, _RENAME_EXCHANGE):
            # No renameat2 (not Linux, or an old filesystem): a moment without an artifact, never half of one.
            backup = staging.with_name(staging.name + ".old")
            output.rename(backup)
            try:
                staging.rename(output)
            except OSError:
                backup.rename(output)
                raise
            backup.rename(staging)
    why = _occupied(staging, force=True)
    if why:
        kept = _free_name(output, "old")
        staging.rename(kept)
        raise ExportError(f"--output {output}: the old folder {why.split(';')[0]}; it is kept as {kept}")


def _free_name(output: Path, word: str) -> Path:
    names = (output.with_name(f"{output.name}.{word}{n or ''}") for n in range(10**6))
    return next(path for path in names if not (path.exists() or path.is_symlink()))


def _renameat2(left: Path, right: Path, flag: int) -> bool:
    """Rename by one system call; False where what stands at `right` or the system forbids it."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return flag == _RENAME_NOREPLACE and _rename_to_nothing(left, right)
    if renameat2(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        return flag == _RENAME_NOREPLACE and _rename_to_nothing(left, right)
    if code in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
        return False
    raise OSError(code, os.strerror(code))


def _rename_to_nothing(left: Path, right: Path) -> bool:
    if right.exists() or right.is_symlink():
        return False
    left.rename(right)
    return True


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
