"""The child of `tblock.export.aoti`: rebuilds the block from the staged folder, captures it, compiles it.

Owns what the C++ compiler is told, and the words of its failure.
"""

import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from tblock.child import say, serve
from tblock.errors import ExportError, compiler_error, reason
from tblock.files import disk_error, system_error
from tblock.machine import cpu_flags
from tblock.manifest import Artifact, read_artifact

CPUINFO_NAMES = {"bmi": "bmi1", "lzcnt": "abm", "sse3": "pni", "sha": "sha_ni", "pclmul": "pclmulqdq"}
"""Feature of GCC's predefined macros to its flag of /proc/cpuinfo, where the two names differ."""

NOT_INSTRUCTIONS = {"sse_math", "sse2_math"}


def main() -> None:
    """Answer the one job on stdin."""
    serve(run)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one package, in this process.

    Args:
        job: `folder` of the weights; `scratch`, a folder with the manifest, where the file `package` goes;
            `cpu`.

    Returns:
        The target's manifest entry, without its files.

    Raises:
        ExportError: Inductor, the C++ compiler or the disk failed.
    """
    from tblock.export.capture import capture, trim_tables
    from tblock.runtimes.eager import build_module

    say("rebuilding the block")
    manifest = read_artifact(job["scratch"]).manifest
    module = build_module(Artifact(Path(job["folder"]), manifest))
    trim_tables(module, manifest.configs, manifest.inputs, manifest.ranges)
    say("capturing")
    program = capture(module, manifest.configs, manifest.inputs, manifest.ranges)
    say(f"compiling for {job['cpu']}")
    try:
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(Path(job["scratch"], job["package"])),
            inductor_configs=inductor_configs(job["cpu"]),
        )
        march, flags = compiled_for(job["cpu"])
    except Exception as error:
        raise ExportError(failure(error, Path(job["folder"]))) from error
    return {
        "torch": torch.__version__,
        "device": "cpu",
        "architecture": platform.machine(),
        "cpu": job["cpu"],
        "cpu_flags": flags,
        "compiler": march,
    }


def inductor_configs(cpu: str) -> dict[str, Any]:
    """Inductor's settings for a level; its vector instructions are limited to the level's own.

    Left alone, Inductor takes the best of this CPU: of several with 512 bits the one with AMX, and bfloat16
    instructions where they are there, which are not of x86-64-v4.
    """
    settings: dict[str, Any] = {"cpp.dynamic_threads": True}
    if cpu == "native":
        return settings
    from torch._inductor import cpu_vec_isa

    vectors: Any = {"x86-64-v3": cpu_vec_isa.VecAVX2, "x86-64-v4": cpu_vec_isa.VecAVX512}[cpu]()
    if vectors and cpu == "x86-64-v4":
        vectors._is_avx512_bf16_supported = False
    cpu_vec_isa.supported_vec_isa_list[:] = [vectors]
    return {**settings, "cpp.march": cpu, "cpp.simdlen": vectors.bit_width()}


def compiled_for(cpu: str) -> tuple[str, list[str]]:
    """What the compiler was told, and what that lets it emit, asked of the compiler itself.

    Returns:
        The flags of the architecture, and the flags of /proc/cpuinfo that a CPU must have.
    """
    from torch._inductor import config, cpp_builder, cpu_vec_isa

    compiler = cpp_builder.get_cpp_compiler()
    with config.patch(inductor_configs(cpu)):
        told = [f"-{flag}" for flag in cpp_builder._get_cpu_arch_cflags(compiler)]
        told += cpu_vec_isa.pick_vec_isa().build_arch_flags().split()
    done = subprocess.run(
        [compiler, *told, "-dM", "-E", "-x", "c++", os.devnull],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=True,
    )
    macros = re.findall(r"#define __(?:ARM_FEATURE_)?(\w+?)(?:__)? 1$", done.stdout, re.MULTILINE)
    features = {name.lower() for name in macros} - NOT_INSTRUCTIONS
    plain = {CPUINFO_NAMES.get(name, name).replace("_", "") for name in features}
    return " ".join(told), sorted(flag for flag in cpu_flags() if flag.replace("_", "") in plain)


def failure(error: BaseException, folder: Path) -> str:
    """One line: the disk that is full, or the compiler's first error, or Inductor's reason."""
    system = system_error(error)
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
    places = f"the package goes to {folder.parent}, the compiler's files to {cache}"
    if " " in cache:
        places += ", where the space breaks its command: set TMPDIR to a path without one"
    if system is not None:
        return f"aoti: {disk_error(system)}; {places}"
    said = compiler_error(error)
    if said:
        return f"aoti: the C++ compiler failed: {said}; {places}"
    return f"aoti: Inductor failed: {reason(error)}; {places}"


if __name__ == "__main__":
    main()
