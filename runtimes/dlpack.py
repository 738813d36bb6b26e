"""Tensors of other libraries into numpy through DLPack, bfloat16 included, without importing those.

numpy's own reader knows no bfloat16, so that dtype is read from the DLPack structure (specification v0.8,
https://dmlc.github.io/dlpack/latest/c_api.html) with ctypes.
"""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from tblock.errors import ArtifactError

_CPU_DEVICES = (1, 3)
"""kDLCPU and kDLCUDAHost (pinned memory) of the specification."""
_BFLOAT = 4
"""kDLBfloat of the specification."""


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def from_dlpack(name: str, value: Any) -> np.ndarray:
    """A numpy array of a CPU tensor; shares its memory, except bfloat16, which is copied.

    Args:
        name: of the input, for the message.
        value: has `__dlpack__` and `__dlpack_device__`.

    Raises:
        ArtifactError: not on the CPU, or its owner refuses (for example because it requires grad).
    """
    device = value.__dlpack_device__() if hasattr(value, "__dlpack_device__") else (1, 0)
    if int(device[0]) not in _CPU_DEVICES:
        raise ArtifactError(
            f"input {name}: on DLPack device {int(device[0])}, wanted the CPU; copy it there first"
        )
    try:
        capsule = value.__dlpack__()
        tensor = _tensor(capsule)
        if tensor.code == _BFLOAT and tensor.bits == 16 and tensor.lanes == 1:
            return _copy_bfloat16(tensor)
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArtifactError(f"input {name}: {str(error).splitlines()[0]}") from None


def _tensor(capsule: Any) -> _DLTensor:
    """The structure inside an unversioned capsule; valid while the capsule lives."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents


def _copy_bfloat16(tensor: _DLTensor) -> np.ndarray:
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, ml_dtypes.bfloat16)
    if tensor.strides:
        strides = tuple(tensor.strides[i] * 2 for i in range(tensor.ndim))
    else:
        strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) * 2 for i in range(tensor.ndim))
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 2
    buffer = (ctypes.c_char * span).from_address((tensor.data or 0) + tensor.byte_offset)
    words = np.ndarray(shape, np.uint16, buffer=buffer, strides=strides)
    return words.copy(order="C").view(ml_dtypes.bfloat16)
