"""Where the plugin library is, and what is in it. Needs neither triton nor a GPU, and loads no native code.

Owns finding and reading; building is in `library_builder`.
"""

import contextlib
import hashlib
import importlib.resources
import json
import os
from pathlib import Path
from typing import Any

import tblock
from tblock.errors import ArtifactError, ConfigError
from tblock.export.plugins.cache_folder import cache_folder

LIBRARY_NAME = "libtblock_plugins.so"

VARIABLE = "TBLOCK_PLUGIN_LIBRARY"
"""Environment variable with the path of a library to use instead of the others."""

_MARKER = b"TBLOCK-PLUGIN-TABLE"
_PYTHON_SOURCES = ("aot", "architectures", "codegen", "library_builder", "tiles", "variants")
_FOLDERS = ("kernels", "trt-plugin")


def package_folder() -> Path:
    """The folder of this package's sources."""
    return Path(str(importlib.resources.files("tblock.export.plugins"))).resolve()


def sources() -> list[Path]:
    """Every file of this installation that the library is made from."""
    folder = package_folder()
    found = [folder / f"{name}.py" for name in _PYTHON_SOURCES]
    for name in _FOLDERS:
        found += sorted(p for p in (folder / name).rglob("*") if p.is_file() and p.suffix != ".pyc")
    core = Path(tblock.__file__).parent
    return [*found, core / "contract.py", core / "dtypes.py"]


def source_digest() -> str:
    """Hex digest of the names and contents of `sources`."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cached_path() -> Path:
    """Where `build` puts the library of these sources.

    Raises:
        ConfigError: this user has no cache folder.
    """
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
    candidates = [package_folder() / "lib" / LIBRARY_NAME]
    # Who has no cache folder has built nothing into it.
    with contextlib.suppress(ConfigError):
        candidates.append(cached_path())
    return next((path for path in candidates if path.is_file()), None)


def is_library(path: Path) -> bool:
    """Whether a file is a plugin library of any tblock."""
    return path.is_file() and _MARKER + b"{" in path.read_bytes()


def read_table(path: Path) -> dict[str, Any]:
    """What a library says about itself, read from the file without loading it.

    Args:
        path: a plugin library.

    Returns:
        `versions`, `ingredients`, `cubins`, `ptx` (architectures), `creators` (what TensorRT's registry gets:
        name, namespace, version, inputs, outputs, fields) and `variants`: a row per variant and architecture
        of op, dtype, name, arch, registers (per thread), shared_bytes, spill_bytes, stack_bytes, vector_bytes
        (narrowest global access of a thread).

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
    try:
        table = json.loads(data[start : data.index(b"\0", start)])
    except ValueError:
        table = {}
    if not {"ingredients", "creators", "variants"} <= set(table):
        raise ArtifactError(
            f"{path}: a damaged plugin library, or one of another tblock; build it again with "
            "`tblock plugin build`"
        )
    return table
