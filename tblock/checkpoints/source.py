"""Where a checkpoint's tensors come from: the protocol that the file readers fulfil, and mapped files.

Owns nothing about families; a source knows names, shapes and bytes.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tblock.errors import ConfigError


class TensorSource(Protocol):
    """Named tensors of one checkpoint, read on demand.

    Attributes:
        path: what the user gave; stands in front of messages.
        bytes_read: bytes of tensor data handed out so far.
    """

    path: Path
    bytes_read: int

    def names(self) -> Iterable[str]:
        """Every tensor's name, as the file spells it."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, outermost axis first."""
        ...

    def read(self, name: str) -> np.ndarray:
        """The whole tensor: float32, float16, bfloat16 or float64 as stored; quantised types as float32."""
        ...

    def read_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        """Some rows of the first axis, [len(rows), ...]; only those rows are read."""
        ...


class MappedFile:
    """One file mapped copy-on-write: arrays are writable, the file never changes, pages load when touched."""

    def __init__(self, path: Path) -> None:
        """Map the file.

        Raises:
            ConfigError: missing, unreadable or empty.
        """
        self.path = path
        try:
            self.size = path.stat().st_size
            self._bytes = np.memmap(path, dtype=np.uint8, mode="c") if self.size else np.empty(0, np.uint8)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}; give a readable checkpoint") from None
        if not self.size:
            raise ConfigError(f"{path}: empty file, wanted a checkpoint")

    def array(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """A view of the bytes from `offset` on as `dtype` and `shape`; a copy where the file misaligns it."""
        count = math.prod(shape)
        array = (
            self._bytes[offset : offset + count * dtype.itemsize].view(np.ndarray).view(dtype).reshape(shape)
        )
        return array if array.flags.aligned else array.copy()

    def raw(self, offset: int, length: int) -> bytes:
        """Bytes, fewer at the end of the file."""
        return self._bytes[offset : offset + length].tobytes()


def require_finite(array: np.ndarray, where: str) -> None:
    """Refuse NaN and Inf.

    Raises:
        ConfigError: names the tensor and how many values are bad.
    """
    finite = np.isfinite(array)
    if not finite.all():
        bad = int(array.size - np.count_nonzero(finite))
        raise ConfigError(f"{where}: NaN or Inf in {bad} of {array.size} values; the checkpoint is damaged")
