"""The NVIDIA GPU of this machine, asked of the driver: no package is needed to learn that there is none.

Owns the difference between a missing GPU (RuntimeUnavailable: skip) and a broken one (an error). Not executed
on a GPU yet.
"""

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from tblock.errors import RuntimeUnavailable, TblockError

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
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
    """

    name: str
    compute_capability: str


def require_gpu(runtime: str) -> Gpu:
    """The first GPU.

    Args:
        runtime: who asks, for the message.

    Raises:
        RuntimeUnavailable: no driver, or no device.
        TblockError: a driver is there and fails.
    """
    needs = "the engine is built, running it needs a GPU"
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise RuntimeUnavailable(f"{runtime}: no NVIDIA driver found ({_LIBRARY}); {needs}") from None
    count, device, major, minor = (ctypes.c_int() for _ in range(4))
    name = ctypes.create_string_buffer(256)
    code = driver.cuInit(0)
    if code in (_NO_DEVICE, _STUB_LIBRARY):
        raise RuntimeUnavailable(f"{runtime}: {_LIBRARY} is here but no GPU (cuInit: {code}); {needs}")
    _require(runtime, "cuInit", code)
    _require(runtime, "cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count)))
    if count.value == 0:
        raise RuntimeUnavailable(f"{runtime}: {_LIBRARY} is here but no GPU is visible; {needs}")
    calls: tuple[tuple[str, Any], ...] = (
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDeviceGetName", (name, len(name), device)),
        ("cuDeviceGetAttribute", (ctypes.byref(major), _MAJOR, device)),
        ("cuDeviceGetAttribute", (ctypes.byref(minor), _MINOR, device)),
    )
    for function, arguments in calls:
        _require(runtime, function, getattr(driver, function)(*arguments))
    return Gpu(name.value.decode(errors="replace"), f"{major.value}.{minor.value}")


def _require(runtime: str, function: str, code: int) -> None:
    if code != _SUCCESS:
        raise TblockError(
            f"{runtime}: the NVIDIA driver fails: {function} gives CUresult {code}; see nvidia-smi"
        )
