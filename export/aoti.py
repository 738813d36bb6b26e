"""AOTInductor: the captured program compiled ahead of time to one package of native code for this machine."""

import contextlib
import io
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from tblock.errors import ExportError, RuntimeUnavailable, reason


def build(program: ExportedProgram, path: Path, *, device: str = "cpu") -> dict[str, Any]:
    """Compile a captured program.

    Args:
        program: of `capture`.
        path: of the new `.pt2` package.
        device: where it will run; the program's tensors are there.

    Returns:
        What a loader must match, for the manifest: `torch`, `device`, `cpu_capability`.

    Raises:
        RuntimeUnavailable: no C++ compiler.
        ExportError: Inductor failed.
    """
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise RuntimeUnavailable("aoti: no C++ compiler found; install g++ (Debian: apt-get install g++)")
    noise = io.StringIO()
    level = logging.getLogger("torch").level
    try:
        with contextlib.redirect_stderr(noise):
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs={"cpp.dynamic_threads": True}
            )
    except Exception as error:
        raise ExportError(f"aoti: Inductor failed: {reason(error)}") from error
    finally:
        logging.getLogger("torch").setLevel(level)
    return {
        "torch": torch.__version__,
        "device": device,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
