"""Where the plugin library is, and what is in it. Needs neither triton nor a GPU, and loads no native code.

Owns finding and reading; building is in `build`.
"""

import hashlib
import importlib.resources
import json
import os
from pathlib import Path
from typing import Any

import tblock
from tblock.errors import ArtifactError
from tblock.export.plugins.cache import cache_folder

LIBRARY_NAME = "libtblock_plugins.so"

VARIABLE = "TBLOCK_PLUGIN_LIBRARY"
"""Environment variable with the path of a library to use instead of the others."""

_MARKER = b"TBLOCK-PLUGIN-TABLE"
_PYTHON_SOURCES = ("aot.py", "codegen.py", "kernels.py", "variants.py")


def package_folder() -> Path:
    """The folder of this package's sources."""
    return Path(str(importlib.resources.files("tblock.export.plugins"))).resolve()


def source_digest() -> str:
    """Hex digest of everything the library is made from, in this installation."""
    folder = package_folder()
    sources = [folder / name for name in _PYTHON_SOURCES]
    sources += sorted(p for p in (folder / "trt-plugin").rglob("*") if p.is_file())
    sources.append(Path(tblock.__file__).parent / "contract.py")
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cached_path() -> Path:
    """Where `build` puts the library of these sources."""
    return cache_folder("plugins") / f"{tblock.__version__}-{source_digest()}" / LIBRARY_NAME


def library_path() -> Path | None:
    """$TBLOCK_PLUGIN_LIBRARY, else the one in the wheel, else the one built from these sources, else None.

    Raises:
        ArtifactError: the variable names a file that does not exist.
    """
    own = os.environ.get(VARIABLE, "")
    if own:
        if not Path(own).is_file():
            raise ArtifactError(f"{VARIABLE}={own}: no such file")
        return Path(own)
    for path in (package_folder() / "lib" / LIBRARY_NAME, cached_path()):
        if path.is_file():
            return path
    return None


def read_table(path: Path) -> dict[str, Any]:
    """What a library says about itself, read from the file without loading it.

    Args:
        path: a plugin library.

    Returns:
        `versions`, `cubins`, `ptx` (architectures) and `variants` (see `describe`).

    Raises:
        ArtifactError: missing file, or not a tblock plugin library.
    """
    if not path.is_file():
        raise ArtifactError(f"{path}: no such plugin library; `tblock plugin build` makes one")
    data = path.read_bytes()
    start = data.find(_MARKER + b"{")
    if start < 0:
        raise ArtifactError(f"{path}: not a tblock plugin library")
    start += len(_MARKER)
    return json.loads(data[start : data.index(b"\0", start)])


def describe(path: Path) -> list[dict[str, Any]]:
    """The resource table: one row per variant and architecture.

    Args:
        path: a plugin library.

    Returns:
        Rows of op, dtype, name, arch, registers (per thread), shared_bytes, spill_bytes, stack_bytes, and
        vector_bytes (narrowest global access of a thread).

    Raises:
        ArtifactError: as read_table.
    """
    return read_table(path)["variants"]
