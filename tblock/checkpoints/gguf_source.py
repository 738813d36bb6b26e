"""Reading GGUF: metadata and memory-mapped tensors; quantised types are dequantised by the `gguf` package.

The header is parsed here: the package's reader walks the tokenizer into objects (seconds) and reports damage
as IndexError. Format: ggml-org/ggml docs/gguf.md, versions 2 and 3. Imports gguf only when a file is opened.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tblock.checkpoints.source import MappedFile
from tblock.errors import ConfigError, RuntimeUnavailable

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_PLAIN = {0: np.float32, 1: np.float16, 28: np.float64, 30: ml_dtypes.bfloat16}
"""Tensor types (ggml numbers) that numpy holds as they are."""


_WITHDRAWN = (4, 5, 31, 32, 33, 36, 37, 38)
"""Tensor types that ggml.h once had (Q4_2, Q4_3 and the repacked Q4_0 and IQ4_NL) and no reader has now."""

_MAX_RANK = 4
"""GGML_MAX_DIMS of ggml.h."""
_DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""What nonsense in a header ends in: a zero alignment, a number where a string should be, endless nesting."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    kind: int
    shape: tuple[int, ...]
    offset: int


class GgufSource:
    """Tensors and metadata of one GGUF file.

    Attributes:
        metadata: key to value; arrays of strings (the tokenizer) are kept as their length.
    """

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            ConfigError: not a GGUF file, truncated, of another version or byte order, or one part of several.
            RuntimeUnavailable: the gguf package is not installed.
        """
        self.path, self.bytes_read = path, 0
        self._gguf = _gguf_package()
        self._file = MappedFile(path)
        self.metadata: dict[str, Any] = {}
        try:
            self._entries = self._read_header(_Reader(self._file))
        except ConfigError:  # a ValueError as well, with words of its own
            raise
        except _DAMAGE as error:
            raise ConfigError(f"{path}: damaged GGUF header ({error})") from None

    def _read_header(self, reader: "_Reader") -> dict[str, _Entry]:
        path = self.path
        if reader.take(4) != b"GGUF":
            raise ConfigError(f"{path}: not a GGUF file")
        version = reader.scalar("I")
        if version not in (2, 3):
            swapped = version and version % 65536 == 0
            got = "big-endian GGUF" if swapped else f"GGUF version {version}"
            raise ConfigError(f"{path}: {got}, wanted little-endian version 2 or 3; convert it again")
        tensors, pairs = reader.scalar("Q"), reader.scalar("Q")
        for _ in range(pairs):
            key = reader.string()
            self.metadata[key] = reader.value(reader.scalar("I"))
        if self.metadata.get("split.count", 1) > 1:
            raise ConfigError(f"{path}: one part of a split GGUF; join it with `llama-gguf-split --merge`")
        return self._read_entries(reader, tensors)

    def _read_entries(self, reader: "_Reader", count: int) -> dict[str, _Entry]:
        entries: dict[str, _Entry] = {}
        for _ in range(count):
            name, rank = reader.string(), reader.scalar("I")
            shape = tuple(reversed([reader.scalar("Q") for _ in range(rank)]))
            if name in entries:
                raise ConfigError(f"{self.path}: tensor {name} occurs twice")
            if rank > _MAX_RANK or not all(0 < n <= 8 * self._file.size for n in shape):
                raise ConfigError(
                    f"{self.path}: tensor {name} has {rank} axes {list(shape)[:_MAX_RANK]}, "
                    "which the file cannot hold"
                )
            entries[name] = _Entry(kind=reader.scalar("I"), shape=shape, offset=reader.scalar("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ConfigError(f"{self.path}: general.alignment is {alignment!r}, wanted a power of two")
        start, offset = _padded(reader.position, alignment), 0
        for name, entry in entries.items():
            # As ggml reads it: the data lie in the order of the list, each padded, without holes.
            if entry.offset != offset:
                got = f"tensor {name} has offset {entry.offset}"
                raise ConfigError(f"{self.path}: {got}, wanted {offset}; fetch the file again")
            end = start + offset + self._row_bytes(entry, name) * _rows(entry.shape)
            if end > self._file.size:
                raise ConfigError(
                    f"{self.path}: truncated ({self._file.size} bytes, tensor {name} ends at {end})"
                )
            entries[name] = _Entry(kind=entry.kind, shape=entry.shape, offset=start + offset)
            offset = _padded(end - start, alignment)
        return entries

    def _row_bytes(self, entry: _Entry, name: str) -> int:
        sizes = self._gguf.GGML_QUANT_SIZES
        if entry.kind in _WITHDRAWN:
            raise ConfigError(
                f"{self.path}: tensor {name} has type {entry.kind}, which ggml withdrew; "
                "quantize the original model again"
            )
        if entry.kind not in set(map(int, sizes)):
            raise ConfigError(
                f"{self.path}: tensor {name} has unknown type {entry.kind}; update the gguf package"
            )
        block, width = sizes[self._gguf.GGMLQuantizationType(entry.kind)]
        row = entry.shape[-1] if entry.shape else 1
        if row % block:
            raise ConfigError(f"{self.path}: tensor {name} has rows of {row}, not a multiple of {block}")
        return row // block * width

    def names(self) -> Iterable[str]:
        """Every tensor's name."""
        return self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost axis first (the file stores it the other way round)."""
        return self._entries[name].shape

    def read(self, name: str) -> np.ndarray:
        """A view into the mapped file, or float32 where the type is quantised.

        Raises:
            ConfigError: an integer type, or one the gguf package cannot dequantise.
        """
        raw = self._raw(name)
        self.bytes_read += raw.nbytes
        return self._values(name, raw)

    def read_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        """A copy of some rows; only those are dequantised.

        Raises:
            ConfigError: as `read`.
        """
        raw = self._raw(name)[np.asarray(rows)]
        self.bytes_read += raw.nbytes
        return self._values(name, raw)

    def read_stored(self, name: str) -> tuple[np.ndarray, int]:
        """The tensor as stored (quantised: rows of bytes) and its ggml type number."""
        return self._raw(name), self._entries[name].kind

    def _raw(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        if entry.kind in _PLAIN:
            return self._file.array(entry.offset, np.dtype(_PLAIN[entry.kind]), entry.shape)
        shape = (*entry.shape[:-1], self._row_bytes(entry, name))
        return self._file.array(entry.offset, np.dtype(np.uint8), shape)

    def _values(self, name: str, raw: np.ndarray) -> np.ndarray:
        kind = self._entries[name].kind
        if kind in _PLAIN:
            return raw
        kind = self._gguf.GGMLQuantizationType(kind)
        try:
            return self._gguf.dequantize(raw, kind)
        except NotImplementedError:
            raise ConfigError(
                f"{self.path}: tensor {name} has type {kind.name}, which is no weight type the gguf package "
                "can dequantise"
            ) from None


class _Reader:
    """A cursor over the header; every read past the end of the file is a truncation."""

    def __init__(self, file: MappedFile) -> None:
        self._file, self.position = file, 0
        self._window, self._window_start = b"", 0

    def take(self, length: int) -> bytes:
        """The next bytes. Reads ahead, as a header is mostly tiny fields."""
        begin = self.position - self._window_start
        if begin + length > len(self._window):
            self._window_start, begin = self.position, 0
            self._window = self._file.raw(self.position, max(length, 1 << 20))
            if length > len(self._window):
                raise ConfigError(f"{self._file.path}: truncated in the header ({self._file.size} bytes)")
        self.position += length
        return self._window[begin : begin + length]

    def scalar(self, code: str) -> Any:
        """One little-endian scalar of a struct code."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        """A length-prefixed UTF-8 string."""
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """One metadata value; an array of strings only as its length."""
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ConfigError(f"{self._file.path}: unknown metadata type {kind}; the file is damaged")
        item, count = self.scalar("I"), self.scalar("Q")
        if item in _SCALARS:
            code = f"<{count}{_SCALARS[item]}"
            return list(struct.unpack(code, self.take(struct.calcsize(code))))
        if item == _STRING:
            for _ in range(count):
                self.take(self.scalar("Q"))
            return count
        return [self.value(item) for _ in range(count)]


def _rows(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _gguf_package() -> Any:
    try:
        import gguf
    except ImportError:
        raise RuntimeUnavailable(
            "GGUF checkpoints need the gguf package: pip install 'tblock[checkpoints]'"
        ) from None
    return gguf
