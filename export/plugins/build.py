"""Builds the TensorRT plugin library: Triton's compiler, CMake and g++; no GPU, no nvcc, no TensorRT.

Owns the order of the steps and where the result goes.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import tblock
from tblock.errors import ConfigError, ExportError, RuntimeUnavailable
from tblock.export.plugins import library
from tblock.export.plugins.headers import find_headers

_CXX_VARIABLE = "CXX"

ARCHITECTURES = (80, 86, 87, 89, 90, 100, 103, 120, 121)
"""What `cubins` may name: those that `aot` has a PTX version for; here because `aot` imports triton."""


def build(
    output: Path | None = None,
    *,
    cubins: tuple[int, ...] = (90, 120),
    force: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Path:
    """Build the library, or return the cached one of the same sources and architectures.

    Args:
        output: a file to write to; None: the per-user cache, where `library_path` finds it.
        cubins: architectures that get machine code; every other one from sm_80 on compiles the PTX at load.
        force: build even when the cache has it.
        report: called with one line per step.

    Returns:
        Path of the library.

    Raises:
        ConfigError: an architecture without kernels, or an output that cannot be written.
        RuntimeUnavailable: triton, cmake, a C++ compiler or the TensorRT headers are missing.
        ExportError: a step failed.
    """
    _check_cubins(cubins)
    cached = library.cached_path()
    if output is not None:
        _check_output(output)
    if not force and cached.is_file() and library.read_table(cached)["cubins"] == sorted(cubins):
        report(f"cached: {cached}")
        return cached if output is None else _install(cached, output)
    _check_output(output or cached)
    check_tools()
    headers, tensorrt = find_headers()
    report(f"TensorRT {tensorrt} headers: {headers}")
    with tempfile.TemporaryDirectory(prefix="tblock-plugin-") as scratch:
        generated, work = Path(scratch, "generated"), Path(scratch, "build")
        generate(generated, tensorrt, cubins, report)
        source = library.package_folder() / "trt-plugin"
        built = _install(compile_library(source, generated, headers, work), output or cached)
    report(f"built: {built} ({built.stat().st_size / 2**20:.1f} MiB)")
    return built


def generate(
    folder: Path,
    tensorrt: str,
    cubins: tuple[int, ...] = (90, 120),
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Compile the kernels and write what the C++ build needs besides its sources.

    Args:
        folder: created.
        tensorrt: version of the headers, recorded.
        cubins: architectures that get machine code.
        report: called with one line per step.

    Raises:
        ExportError: a kernel does not compile or spills.
    """
    from tblock.export.plugins import aot, codegen

    versions = {
        "tblock": tblock.__version__,
        "tensorrt_headers": tensorrt,
        "triton": importlib.metadata.version("triton"),
        "sources": library.source_digest(),
    }
    folder.mkdir()
    codegen.write(folder, aot.compile_all(cubins, report), tuple(sorted(cubins)), aot.BASELINE, versions)


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
    _run(["cmake", "-S", str(source), "-B", str(work), *generator, *defines], "configure")
    _run(["cmake", "--build", str(work), "--parallel"], "compile")
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
    compiler = os.environ.get(_CXX_VARIABLE, "")
    if not any(shutil.which(name) for name in ([compiler] if compiler else ["c++", "g++"])):
        raise RuntimeUnavailable(
            f"no C++ compiler: looked for {compiler or 'c++ and g++'} on PATH; "
            f"install g++ or set {_CXX_VARIABLE}"
        )


def _run(command: list[str], step: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        first = next((i for i, line in enumerate(lines) if "error: " in line or "CMake Error" in line), -5)
        raise ExportError(f"plugin library: {step} failed: " + " | ".join(lines[first:][:5])[:1500])


def _check_cubins(cubins: tuple[int, ...]) -> None:
    for arch in cubins:
        if arch not in ARCHITECTURES:
            lowest = ARCHITECTURES[0]
            why = f"below sm_{lowest}, which the kernels need" if arch < lowest else "no such architecture"
            raise ConfigError(f"--cubins {arch}: {why}; known: {', '.join(map(str, ARCHITECTURES))}")


def _check_output(target: Path) -> None:
    """Create the folder and refuse, before minutes of building, one that no file can be put into."""
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder, wanted a path for the library")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Permission bits say too little: /proc and read-only mounts look writable to root.
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise ConfigError(
            f"{target}: the folder {target.parent} cannot be written ({error.strerror})"
        ) from error


def _install(source: Path, target: Path) -> Path:
    """Copy beside the target and rename, so that no reader ever sees half a library."""
    staged = None
    try:
        handle, staged = tempfile.mkstemp(dir=target.parent, prefix=".tblock-plugin-")
        os.close(handle)
        shutil.copyfile(source, staged)
        os.chmod(staged, 0o755)
        os.replace(staged, target)
    except OSError as error:
        raise ExportError(f"{target}: the plugin library cannot be put there: {error.strerror}") from error
    finally:
        if staged is not None:
            Path(staged).unlink(missing_ok=True)
    return target
