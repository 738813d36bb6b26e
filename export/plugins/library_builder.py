"""Builds the TensorRT plugin library: Triton's compiler, CMake and g++; no GPU, no nvcc, no TensorRT.

Owns the order of the steps, what a build depends on, and where the result goes.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import tblock
from tblock.errors import ArtifactError, ConfigError, ExportError, RuntimeUnavailable
from tblock.export.plugins import architectures, cache_folder, headers, library
from tblock.files import check_writable_file, disk_error, whole_file
from tblock.machine import require_cxx_compiler

_COMPILERS = ("c++", "g++")
_FLAG_VARIABLES = ("CXX", "CXXFLAGS", "LDFLAGS")
"""What CMake reads from the environment."""

_TELLING = ("error: ", "CMake Error", "No space left", "cannot open", "fatal:")


def build(
    output: Path | None = None,
    *,
    cubins: Iterable[int] = architectures.DEFAULT_CUBINS,
    force: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Path:
    """Build the library, or return the cached one that is made of the same.

    Args:
        output: a file to write to; None: the per-user cache, where `library_path` finds it.
        cubins: architectures that get machine code; every other one from sm_80 on compiles the PTX at load.
        force: build even when the cache has it.
        report: called with one line per step.

    Returns:
        Path of the library.

    Raises:
        ConfigError: an architecture without kernels, an output that cannot be written or is a file that is no
            plugin library, or no cache folder.
        RuntimeUnavailable: triton, cmake, a C++ compiler or the TensorRT headers are missing.
        ExportError: a step failed.
    """
    chosen = architectures.check(cubins)
    cached = library.cached_path()
    if output is not None:
        _check_output(output, "-o")
    made_of = ingredients(chosen)
    if not force and _ingredients_of(cached) == made_of:
        report(f"cached: {cached}")
        return cached if output is None else _install(cached, output)
    if output is None:
        _check_output(cached, "")
    check_tools()
    include, tensorrt = headers.find_headers()
    report(f"TensorRT {tensorrt} headers: {include}")
    with _scratch_folder() as scratch:
        generated = scratch / "generated"
        generate(generated, tensorrt, chosen, report)
        source = library.package_folder() / "trt-plugin"
        built = _install(compile_library(source, generated, include, scratch / "build"), output or cached)
    report(f"built: {built} ({built.stat().st_size / 2**20:.1f} MiB)")
    return built


def ingredients(cubins: tuple[int, ...]) -> dict[str, Any]:
    """Everything that shapes a library built now: two builds of the same are one."""
    triton = importlib.util.find_spec("triton") is not None
    return {
        "cubins": list(cubins),
        "sources": library.source_digest(),
        "headers": headers.identity(),
        "triton": importlib.metadata.version("triton") if triton else None,
        "environment": {name: os.environ.get(name, "") for name in _FLAG_VARIABLES},
    }


def generate(
    folder: Path,
    tensorrt: str,
    cubins: tuple[int, ...] = architectures.DEFAULT_CUBINS,
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Compile the kernels and write what the C++ build needs besides its sources.

    Args:
        folder: created.
        tensorrt: version of the headers, recorded.
        cubins: architectures that get machine code, sorted.
        report: called with one line per step.

    Raises:
        ExportError: a kernel does not compile or spills.
    """
    from tblock.export.plugins import aot, codegen

    versions = {
        "tblock": tblock.__version__,
        "tensorrt_headers": tensorrt,
        "triton": importlib.metadata.version("triton"),
    }
    folder.mkdir()
    codegen.write(folder, aot.compile_all(cubins, report), cubins, versions, ingredients(cubins))


def compile_library(
    source: Path,
    generated: Path,
    headers: Path,
    work: Path,
    *,
    build_type: str = "Release",
    sanitize: bool = False,
) -> Path:
    """Run CMake; again on the same folders: only what changed.

    Args:
        source: `trt-plugin`.
        generated: of `generate`.
        headers: folder with NvInferRuntime.h.
        work: build folder, created.
        build_type: CMake's.
        sanitize: with AddressSanitizer and UBSan.

    Returns:
        The library inside `work`.

    Raises:
        ExportError: CMake or the compiler failed.
    """
    options = {
        "CMAKE_BUILD_TYPE": build_type,
        "TBLOCK_GENERATED": generated,
        "TBLOCK_TENSORRT_INCLUDE": headers,
        "TBLOCK_SANITIZE": "ON" if sanitize else "OFF",
    }
    # CMake's own default generator (make) where there is no ninja.
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    defines = [f"-D{name}={value}" for name, value in options.items()]
    _run(["cmake", "-S", str(source), "-B", str(work), *generator, *defines], "configure", work)
    _run(["cmake", "--build", str(work), "--parallel"], "compile", work)
    return work / library.LIBRARY_NAME


def check_tools() -> None:
    """Make sure of triton, cmake and a C++ compiler.

    Raises:
        RuntimeUnavailable: one is missing; says what brings it.
    """
    if importlib.util.find_spec("triton") is None:
        raise RuntimeUnavailable("triton is not installed: pip install 'tblock[plugins]'")
    if shutil.which("cmake") is None:
        raise RuntimeUnavailable("cmake is not on PATH: pip install 'tblock[plugins]'")
    require_cxx_compiler("plugin library", *_COMPILERS)


def _run(command: list[str], step: str, folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        lines = [line for line in lines if line and not line.startswith("[")]  # ninja's progress
        first = next((i for i, line in enumerate(lines) if any(mark in line for mark in _TELLING)), -5)
        words = " | ".join(lines[first:][:5])[:1500]
        hint = "; set TMPDIR to a folder with room" if "No space left" in words else ""
        raise ExportError(f"plugin library: {step} failed in {folder}: {words}{hint}")


@contextlib.contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A temporary folder; that it is full or missing is said of it, whoever meets it."""
    folder = os.environ.get("TMPDIR", "/tmp")
    try:
        with tempfile.TemporaryDirectory(prefix="tblock-plugin-") as scratch:
            folder = scratch
            yield Path(scratch)
    except OSError as error:
        raise ExportError(
            f"plugin library: the temporary folder {folder} cannot be used: {disk_error(error)}; "
            "set TMPDIR to another"
        ) from error


def _ingredients_of(path: Path) -> dict[str, Any] | None:
    """What a library is made of; None where there is none that says so."""
    try:
        return library.read_table(path)["ingredients"]
    except ArtifactError:
        return None


def _check_output(target: Path, where: str) -> None:
    """Create the folder, and refuse, before minutes of building, what no library can or should be put at."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "" if where else f"; set {cache_folder.VARIABLE} to a folder that can be written"
        raise ConfigError(
            f"{where} {target}: the folder {target.parent} cannot be made ({disk_error(error)}){hint}".strip()
        ) from error
    check_writable_file(target, where)
    if where and target.exists() and not library.is_library(target):
        raise ConfigError(f"{where} {target}: is there and is no plugin library; it is not replaced")


def _install(source: Path, target: Path) -> Path:
    with whole_file(target) as fresh:
        shutil.copyfile(source, fresh)
        fresh.chmod(0o755)
    return target
