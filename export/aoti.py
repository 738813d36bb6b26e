"""AOTInductor: a block compiled ahead of time to one package of native code, in a process of its own.

Owns the parent's side: what the child is given and which CPUs may be asked for. The child is
`tblock.export.aoti_compiler`: on a full disk the package's C++ writer ends the process it runs in.
"""

import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tblock.child import ChildFailure, ask
from tblock.errors import ConfigError, ExportError
from tblock.machine import cpu_flags
from tblock.manifest import NAME, Artifact

CPUS = {"native": None, "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}
"""Level to compile for (x86-64 psABI) to the flag of /proc/cpuinfo that tells such a CPU."""

TIMEOUT = 6 * 3600.0
"""Of one compilation (seconds): far above what the largest block takes, so that a hang ends."""

FULL = 1 << 20
"""Free space below which a crash of the package's writer is the disk's (bytes)."""


def default_cpu() -> str:
    """The level where none is asked for: AVX2, which every x86 server and desktop since 2015 has."""
    return "x86-64-v3" if platform.machine() == "x86_64" else "native"


def check_cpu(cpu: str) -> None:
    """Refuse, before any work, a level whose code could not be run and judged here.

    Raises:
        ConfigError: an unknown level, or one above this CPU.
    """
    if cpu not in CPUS:
        raise ConfigError(f"--cpu {cpu}: unknown; known: {', '.join(CPUS)}")
    flag = CPUS[cpu]
    if flag is not None and flag not in cpu_flags():
        raise ConfigError(
            f"--cpu {cpu}: this {platform.machine()} CPU has no {flag}; the package could not be "
            "judged here; use --cpu native, or export on such a machine"
        )


def compile_package(artifact: Artifact, path: Path, cpu: str) -> dict[str, Any]:
    """Compile the block of an artifact.

    Args:
        artifact: as far as it is made: its weights are read, its manifest says the rest.
        path: of the new `.pt2` package.
        cpu: of CPUS.

    Returns:
        What a loader must match, for the manifest: `torch`, `device`, `architecture`, `cpu`, `cpu_flags` and
        the compiler's own flags; and the precision of the softmax.

    Raises:
        ExportError: Inductor or the C++ compiler failed, the disk is full, or the child crashed.
    """
    with tempfile.TemporaryDirectory(prefix=".aoti-", dir=path.parent) as scratch:
        Path(scratch, NAME).write_text(artifact.manifest.to_json(), encoding="utf-8")
        job = {"folder": str(artifact.folder.resolve()), "scratch": scratch, "package": path.name, "cpu": cpu}
        try:
            entry = ask("tblock.export.aoti_compiler", job, timeout=TIMEOUT, title="aoti")
        except ChildFailure as failure:
            if shutil.disk_usage(scratch).free < FULL:
                raise ExportError(f"aoti: the disk is full ({path.parent.parent}); {failure}") from failure
            raise
        os.replace(Path(scratch, path.name), path)
    return {**entry, "softmax": "float32", "softmax_reason": "torch's attention accumulates in float32"}
