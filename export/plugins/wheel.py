"""A platform wheel of tblock that carries the plugin library, so that its users need no compiler.

Owns adding one file to a wheel: setuptools makes the pure wheel, this adds the library, its RECORD line and
the platform tag. Format: the Python packaging specification "Binary distribution format".
"""

import base64
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tblock.errors import ConfigError, ExportError
from tblock.export.plugins.build import build
from tblock.export.plugins.library import LIBRARY_NAME

PLACE = f"tblock/export/plugins/lib/{LIBRARY_NAME}"
"""Where `library_path` looks for a library that came with the wheel."""

PLATFORM = "manylinux_2_35_x86_64"
"""The library asks for no symbol above GLIBC 2.35 (a test reads them)."""


def build_wheel(project: Path, output: Path, *, report: Callable[[str], None] = lambda _: None) -> Path:
    """Build the library and a wheel with it.

    Args:
        project: the source tree, with pyproject.toml.
        output: folder of the new wheel; created.
        report: called with one line per step.

    Returns:
        Path of the wheel.

    Raises:
        ConfigError: no source tree there.
        RuntimeUnavailable: a tool of the library's build is missing.
        ExportError: a build failed.
    """
    if not (project / "pyproject.toml").is_file():
        raise ConfigError(f"{project}: no pyproject.toml; run it in the source tree, or give --source")
    library = build(report=report)
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tblock-wheel-") as scratch:
        report("pip wheel")
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", scratch, str(project)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ExportError(f"pip wheel: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        return add_library(next(Path(scratch).glob("tblock-*.whl")), library, output)


def add_library(pure: Path, library: Path, output: Path) -> Path:
    """Copy a pure wheel, with the library added and the platform in name, WHEEL and RECORD.

    Args:
        pure: a `py3-none-any` wheel.
        library: the plugin library.
        output: folder of the new wheel.
    """
    path = output / pure.name.replace("-any.whl", f"-{PLATFORM}.whl")
    with zipfile.ZipFile(pure) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        record_name = next(n for n in source.namelist() if n.endswith(".dist-info/RECORD"))
        wheel_name = record_name.replace("RECORD", "WHEEL")
        tags = re.sub(rb"-any(?=\r?\n)", f"-{PLATFORM}".encode(), source.read(wheel_name))
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
