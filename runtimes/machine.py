"""Where a timing was taken: CPU, usable cores, versions, commit. Imports only the standard library."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import tblock


def cpu_name() -> str:
    """The CPU's own name, or the architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """Cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, tblock and those of these packages that are loaded."""
    found = {"python": platform.python_version(), "tblock": tblock.__version__}
    for name in packages:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def commit() -> str | None:
    """The commit of this tblock's source tree, `-dirty` where files changed; None outside of a checkout."""
    root = Path(tblock.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
