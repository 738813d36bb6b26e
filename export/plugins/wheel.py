"""A platform wheel of tblock that carries the plugin library, so that its users need no compiler.

Owns adding one file to a wheel: setuptools makes the pure wheel, this adds the library, its RECORD line and
the platform tag, which is read from the library. Format: the Python packaging specification "Binary
distribution format".
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tblock.errors import ArtifactError, ConfigError, ExportError
from tblock.export.plugins.library import LIBRARY_NAME
from tblock.export.plugins.library_builder import build
from tblock.files import check_writable_file, disk_error, whole_file

PLACE = f"tblock/export/plugins/lib/{LIBRARY_NAME}"
"""Where `library_path` looks for a library that came with the wheel."""

_MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine of the ELF header (the System V gABI) to the name in a platform tag."""

_OLDEST_GLIBC = 17
"""Minor version of the oldest manylinux_2_x that pip knows."""


def platform_tag(library: Path) -> str:
    """The tag of the machines that can load a library: its architecture and the newest GLIBC it asks for.

    Raises:
        ArtifactError: not a shared library of an architecture that wheels know.
    """
    data = library.read_bytes()
    machine = int.from_bytes(data[18:20], "little") if data[:4] == b"\x7fELF" else None
    if machine not in _MACHINES:
        raise ArtifactError(f"{library}: no shared library of {' or '.join(_MACHINES.values())}")
    asked = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", data)]
    return f"manylinux_2_{max(asked, default=_OLDEST_GLIBC)}_{_MACHINES[machine]}"


def build_wheel(project: Path, output: Path, *, report: Callable[[str], None] = lambda _: None) -> Path:
    """Build the library and a wheel with it.

    Args:
        project: the source tree, with pyproject.toml.
        output: folder of the new wheel; created.
        report: called with one line per step.

    Returns:
        Path of the wheel.

    Raises:
        ConfigError: no source tree there, or no folder that can be written.
        RuntimeUnavailable: a tool of the library's build is missing.
        ExportError: a build failed.
    """
    if not (project / "pyproject.toml").is_file():
        raise ConfigError(
            f"--source {project}: no pyproject.toml; run it in the source tree, or give --source"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"-o {output}: cannot be made a folder ({disk_error(error)})") from error
    check_writable_file(output / "tblock.whl", "-o")
    library = build(report=report)
    with tempfile.TemporaryDirectory(prefix="tblock-wheel-") as scratch:
        report("pip wheel")
        return add_library(build_pure(project, Path(scratch)), library, output)


def build_pure(project: Path, folder: Path) -> Path:
    """The wheel that setuptools makes of a source tree.

    Args:
        project: the source tree; what an earlier build left there does not get into the wheel.
        folder: an existing, empty one.

    Raises:
        ExportError: pip or setuptools failed.
    """
    settings = folder / "setuptools.cfg"
    settings.write_text(f"[build]\nbuild_base={folder / 'build'}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(folder), str(project)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        env={**os.environ, "DIST_EXTRA_CONFIG": str(settings)},
    )
    wheels = list(folder.glob("tblock-*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or [f"no wheel of tblock from {project}"])[-1]
        raise ExportError(f"pip wheel: {last}")
    return wheels[0]


def add_library(pure: Path, library: Path, output: Path) -> Path:
    """Copy a pure wheel, with the library added and the platform in name, WHEEL and RECORD.

    Args:
        pure: a `py3-none-any` wheel.
        library: the plugin library.
        output: folder of the new wheel.

    Raises:
        ArtifactError: not a shared library of an architecture that wheels know.
        ExportError: the wheel cannot be written.
    """
    platform = platform_tag(library)
    path = output / pure.name.replace("-any.whl", f"-{platform}.whl")
    with (
        zipfile.ZipFile(pure) as source,
        whole_file(path) as fresh,
        zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        record_name = next(n for n in source.namelist() if n.endswith(".dist-info/RECORD"))
        wheel_name = record_name.replace("RECORD", "WHEEL")
        tags = re.sub(rb"-any(?=\r?\n)", f"-{platform}".encode(), source.read(wheel_name))
        tags = tags.replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
        added = {wheel_name: tags, PLACE: library.read_bytes()}
        lines = [
            line for line in source.read(record_name).decode().splitlines() if line.split(",")[0] not in added
        ]
        for item in source.infolist():
            if item.filename not in (*added, record_name):
                target.writestr(item, source.read(item.filename))
        for name, data in added.items():
            target.writestr(name, data)
        lines += [_record_line(name, data) for name, data in added.items()]
        target.writestr(record_name, "\n".join(lines) + "\n")
    return path


def _record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"
