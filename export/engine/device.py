"""The machine's first NVIDIA GPU, asked of the CUDA driver directly: no CUDA package is needed to know that
none is there."""

import ctypes
import sys
from dataclasses import dataclass

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)."""


@dataclass(frozen=True)
class Device:
    """One GPU.

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


def first_device() -> Device | None:
    """The first GPU, or None where there is no driver or no GPU."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    count, major, minor, driver = (ctypes.c_int() for _ in range(4))
    name = ctypes.create_string_buffer(256)
    device = ctypes.c_int()
    calls = (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGetCount(ctypes.byref(count)),
        lambda: 0 if count.value else 1,
        lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
        lambda: cuda.cuDeviceGetName(name, len(name), device),
        lambda: cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device),
        lambda: cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device),
        lambda: cuda.cuDriverGetVersion(ctypes.byref(driver)),
    )
    if any(call() != 0 for call in calls):
        return None
    version = f"{driver.value // 1000}.{driver.value % 1000 // 10}"
    return Device(name.value.decode(errors="replace"), f"{major.value}.{minor.value}", version)
