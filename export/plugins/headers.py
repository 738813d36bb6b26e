"""Finds the TensorRT headers that the plugin library is built against, or fetches them once.

The headers are Apache-2.0 and are never part of tblock: pip downloads a pinned wheel that carries those of
TensorRT 10.14, whose digest is checked before anything is unpacked into the user's cache.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tblock.errors import ExportError, RuntimeUnavailable
from tblock.export.plugins.cache_folder import cache_folder
from tblock.files import disk_error

VARIABLE = "TBLOCK_TENSORRT_INCLUDE"
"""Environment variable with a folder of the user's own headers."""

_WHEEL = "kernel-lens==2.0.1"
_WHEEL_SHA256 = "07cc714e8b5e7f34b672f7c7fad93febe7c747be5837ba276b1527370134ffe0"
_WHEEL_FOLDER = "kernel_lens/include/tensorrt/"
# IPluginV3 came with 10.0 and is the plugin interface of 11.
_SUPPORTED = (10, 11)


def find_headers() -> tuple[Path, str]:
    """The folder with NvInferRuntime.h and its TensorRT version, as "10.14".

    Raises:
        RuntimeUnavailable: none found or fetched, or a version without IPluginV3; says where it looked.
        ConfigError: this user has no cache folder.
        ExportError: fetched ones cannot be kept.
    """
    own = os.environ.get(VARIABLE, "")
    if own:
        return Path(own), _version(Path(own), f"{VARIABLE}={own}")
    cached = cache_folder("tensorrt-headers") / _WHEEL_SHA256[:16]
    if not (cached / "NvInferRuntime.h").exists():
        _fetch(cached)
    return cached, _version(cached, str(cached))


def identity() -> str:
    """Hex digest of the headers that `find_headers` gives; fetches none.

    Raises:
        RuntimeUnavailable: the user's own cannot be read.
    """
    own = os.environ.get(VARIABLE, "")
    if not own:
        return _WHEEL_SHA256[:16]
    digest = hashlib.sha256()
    try:
        for path in sorted(Path(own).glob("Nv*.h")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    except OSError as error:
        raise RuntimeUnavailable(f"{VARIABLE}={own}: cannot be read: {disk_error(error)}") from error
    return digest.hexdigest()[:16]


def _version(folder: Path, label: str) -> str:
    header = folder / "NvInferVersion.h"
    if not header.exists() or not (folder / "NvInferRuntime.h").exists():
        raise RuntimeUnavailable(
            f"{label}: no NvInferRuntime.h and NvInferVersion.h there; "
            f"point {VARIABLE} at TensorRT's include folder"
        )
    text = header.read_text(errors="replace")
    found = [
        re.search(rf"#define (?:TRT|NV_TENSORRT)_{part}(?:_ENTERPRISE)? +(\d+)", text)
        for part in ("MAJOR", "MINOR")
    ]
    if not all(found):
        raise RuntimeUnavailable(
            f"{label}: no version in NvInferVersion.h; point {VARIABLE} at TensorRT's include folder"
        )
    major, minor = (int(m.group(1)) for m in found if m)
    if major not in _SUPPORTED:
        raise RuntimeUnavailable(f"{label}: TensorRT {major}.{minor} headers; the plugins need 10.x or 11.x")
    return f"{major}.{minor}"


def _fetch(target: Path) -> None:
    looked = f"{VARIABLE} (not set), {target}, and `pip download {_WHEEL}`"
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, _WHEEL]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise RuntimeUnavailable(
                f"no TensorRT headers: looked in {looked} ({reason}); "
                f"set {VARIABLE} to the folder with NvInferRuntime.h"
            )
        digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
        if digest != _WHEEL_SHA256:
            raise RuntimeUnavailable(
                f"{wheels[0].name}: SHA-256 {digest}, wanted {_WHEEL_SHA256}; "
                f"set {VARIABLE} to your own headers"
            )
        try:
            _unpack(wheels[0], target)
        except OSError as error:
            raise ExportError(f"TensorRT headers cannot be kept in {target}: {disk_error(error)}") from error


def _unpack(wheel: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(_WHEEL_FOLDER) and name.endswith(".h"):
                    (staged / name.removeprefix(_WHEEL_FOLDER)).write_bytes(archive.read(name))
        staged.chmod(0o755)
        staged.rename(target)
    except OSError:
        # Fine where another process fetched the same wheel meanwhile.
        if not (target / "NvInferRuntime.h").exists():
            raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
