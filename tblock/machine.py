"""What this machine has: CPU, GPU, C++ compiler, versions. Imports only the standard library.

Owns the difference between a GPU that is missing (RuntimeUnavailable: skip) and one that is broken (an
error). The GPU is asked of the driver directly: no CUDA package is needed to learn that there is none.
"""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tblock
from tblock.errors import RuntimeUnavailable, TblockError

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
"""The NVIDIA driver's library."""

_SUCCESS, _STUB_LIBRARY, _NO_DEVICE = 0, 34, 100
"""CUresult values of cuda.h."""

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""


@dataclass(frozen=True)
class Gpu:
    """Device 0.

    Attributes:
        name: such as `NVIDIA H200`.
        compute_capability: such as `9.0`.
        driver: highest CUDA version that the driver supports, such as `13.0`.
    """

    name: str
    compute_capability: str
    driver: str

    def __str__(self) -> str:
        return f"{self.name}, compute capability {self.compute_capability}, driver CUDA {self.driver}"


def find_gpu() -> Gpu:
    """The first GPU.

    Raises:
        RuntimeUnavailable: no driver, or no device.
        TblockError: a driver is there and fails.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        raise RuntimeUnavailable(f"no NVIDIA driver found ({DRIVER})") from None
    count, device, major, minor, version = (ctypes.c_int() for _ in range(5))
    name = ctypes.create_string_buffer(256)
    code = driver.cuInit(0)
    if code in (_NO_DEVICE, _STUB_LIBRARY):
        raise RuntimeUnavailable(f"{DRIVER} is here but no GPU (cuInit: {code})")
    _require("cuInit", code)
    _require("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count)))
    if count.value == 0:
        raise RuntimeUnavailable(f"{DRIVER} is here but no GPU is visible")
    calls: tuple[tuple[str, Any], ...] = (
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDeviceGetName", (name, len(name), device)),
        ("cuDeviceGetAttribute", (ctypes.byref(major), _MAJOR, device)),
        ("cuDeviceGetAttribute", (ctypes.byref(minor), _MINOR, device)),
        ("cuDriverGetVersion", (ctypes.byref(version),)),
    )
    for function, arguments in calls:
        _require(function, getattr(driver, function)(*arguments))
    return Gpu(
        name.value.decode(errors="replace"),
        f"{major.value}.{minor.value}",
        f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


def gpu_or_none() -> Gpu | None:
    """The first GPU that works, or None."""
    try:
        return find_gpu()
    except TblockError:
        return None


def _require(function: str, code: int) -> None:
    if code != _SUCCESS:
        raise TblockError(f"the NVIDIA driver fails: {function} gives CUresult {code}; see nvidia-smi")


def cxx_compiler(*names: str) -> str | None:
    """Path of the C++ compiler: `$CXX` where it is set, else the first of these names that is on PATH."""
    own = os.environ.get("CXX", "")
    return next((path for path in map(shutil.which, [own] if own else names) if path), None)


def require_cxx_compiler(who: str, *names: str) -> str:
    """The same, or a line that says what brings it.

    Raises:
        RuntimeUnavailable: there is none.
    """
    found = cxx_compiler(*names)
    if found is None:
        looked = os.environ.get("CXX") or " and ".join(names)
        raise RuntimeUnavailable(
            f"{who}: no C++ compiler found (looked for {looked}); install g++ (Debian: apt-get install g++)"
            " or set CXX to the path of one, without options"
        )
    return found


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


def cpu_flags() -> frozenset[str]:
    """Names of the instruction sets and features this CPU has, as Linux spells them; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split() if found else ())


def usable_cpus() -> int:
    """Cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota() -> float | None:
    """CPUs' worth of time that the control group grants (Linux, version 2 or 1); None where unlimited."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        folder = Path("/sys/fs/cgroup/cpu")
        quota, period = ((folder / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):
        return None


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
        result = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
