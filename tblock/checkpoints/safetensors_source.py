"""Reading safetensors, one file or shards with an index, memory-mapped and checked before use.

The header is parsed here instead of by the safetensors package: taking one layer must map only that layer,
bfloat16 has to come out as ml_dtypes, and truncated, overlapping or gapped files each get their own message.
Format: huggingface/safetensors README (8 bytes little-endian header length, JSON header, data without holes).
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from tblock.checkpoints.source import MappedFile
from tblock.errors import ConfigError

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_WIDTHS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of each dtype the format knows; those outside _DTYPES are refused when such a tensor is wanted."""

MAX_HEADER = 100_000_000
"""Bytes; the format's own limit."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor's place.

    Attributes:
        file: mapped.
        dtype: the format's name, such as BF16.
        shape: as stored.
        offset, length: bytes from the start of the file.
    """

    file: MappedFile
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


_MAX_RANK, _MAX_VALUES = 32, 2**48
"""Beyond either, numpy refuses a shape, even an empty one."""


class SafetensorsSource:
    """Tensors of one .safetensors file or of several shards."""

    def __init__(self, path: Path, files: Sequence[Path], weight_map: dict[str, str] | None = None) -> None:
        """Read every header.

        Args:
            path: what the user gave.
            files: the .safetensors files.
            weight_map: the index's tensor name to file name, to be checked against the headers.

        Raises:
            ConfigError: a file is missing, truncated or malformed, or shards and index disagree.
        """
        self.path, self.bytes_read = path, 0
        self._entries: dict[str, Entry] = {}
        for file in files:
            for name, entry in read_header(file).items():
                if name in self._entries:
                    other = self._entries[name].file.path.name
                    raise ConfigError(f"{path}: tensor {name} is in two shards, {other} and {file.name}")
                self._entries[name] = entry
        for name, shard in (weight_map or {}).items():
            if name not in self._entries or self._entries[name].file.path.name != shard:
                found = self._entries[name].file.path.name if name in self._entries else "no shard"
                raise ConfigError(f"{path}: the index puts tensor {name} in {shard}, found in {found}")

    def names(self) -> Iterable[str]:
        """Every tensor's name."""
        return self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        """As stored."""
        return self._entries[name].shape

    def read(self, name: str) -> np.ndarray:
        """A view into the mapped file, in the stored dtype.

        Raises:
            ConfigError: a dtype that is no weight's.
        """
        entry = self._entries[name]
        array = entry.file.array(entry.offset, _dtype(entry, name), entry.shape)
        self.bytes_read += array.nbytes
        return array

    def read_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        """A copy of some rows.

        Raises:
            ConfigError: a dtype that is no weight's.
        """
        entry = self._entries[name]
        array = entry.file.array(entry.offset, _dtype(entry, name), entry.shape)[np.asarray(rows)]
        self.bytes_read += array.nbytes
        return array


def _dtype(entry: Entry, name: str) -> np.dtype:
    if entry.dtype not in _DTYPES:
        raise ConfigError(
            f"{entry.file.path}: tensor {name} has dtype {entry.dtype}, wanted {', '.join(_DTYPES)}; "
            "dequantize it first"
        )
    return np.dtype(_DTYPES[entry.dtype])


def read_header(path: Path) -> dict[str, Entry]:
    """Where each tensor of one file lies.

    Raises:
        ConfigError: missing, truncated or malformed.
    """
    """Where each tensor of one file lies.

    Raises:
        ConfigError: missing, truncated or malformed.
    """
    file = MappedFile(path)
    length = int.from_bytes(file.raw(0, 8), "little")
    if file.size < 8 or not 2 <= length <= MAX_HEADER or file.raw(8, 1) != b"{":
        raise ConfigError(f"{path}: not a safetensors file")
    if 8 + length > file.size:
        raise ConfigError(f"{path}: truncated in the header ({file.size} bytes, header ends at {8 + length})")
    try:
        header = json.loads(file.raw(8, length), object_pairs_hook=_unique)
        header.pop("__metadata__", None)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: malformed safetensors header ({error})") from None
    for name, value in header.items():
        if not _is_entry(value):
            raise ConfigError(
                f"{path}: tensor {name} has a malformed header entry, wanted dtype, shape and data_offsets"
            )
    entries, position = {}, 0
    for begin, end, name in sorted((*value["data_offsets"], name) for name, value in header.items()):
        dtype, shape = header[name]["dtype"], tuple(header[name]["shape"])
        if dtype not in _WIDTHS:
            raise ConfigError(
                f"{path}: tensor {name} has unknown dtype {dtype!r}; known: {', '.join(_WIDTHS)}"
            )
        if begin != position:
            kind = "overlaps the tensor before it" if begin < position else "leaves a hole before it"
            raise ConfigError(f"{path}: tensor {name} at bytes {begin} to {end} {kind}; the file is damaged")
        if (end - begin) * 8 != math.prod(shape) * _WIDTHS[dtype]:
            raise ConfigError(
                f"{path}: tensor {name} has {end - begin} bytes, not those of {dtype} {list(shape)}"
            )
        entries[name] = Entry(
            file=file, dtype=dtype, shape=shape, offset=8 + length + begin, length=end - begin
        )
        position = end
    if 8 + length + position != file.size:
        kind = "truncated" if 8 + length + position > file.size else "longer than its header says"
        raise ConfigError(f"{path}: {kind} ({file.size} bytes, wanted {8 + length + position})")
    return entries


def _is_entry(value: object) -> bool:
    """Whether a header's value is a name and lists of numbers that numpy can take."""
    if not isinstance(value, dict) or not isinstance(value.get("dtype"), str):
        return False
    shape, offsets = value.get("shape"), value.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return False
    if any(type(n) is not int or n < 0 for n in shape + offsets) or offsets[0] > offsets[1]:
        return False
    return len(shape) <= _MAX_RANK and math.prod(n for n in shape if n) < _MAX_VALUES


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} occurs twice")
    return dict(pairs)
