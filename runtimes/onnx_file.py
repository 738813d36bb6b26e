"""What an ONNX file needs beside itself, read without the onnx package.

Owns one question: which external data files does it name. Imports only the standard library.
"""

import mmap
import re
from pathlib import Path

_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f]|[\x80-\xff]\x01)")
"""A StringStringEntryProto (onnx.proto: field 1 key, 2 value) with key `location`, up to its length."""


def external_locations(model: bytes | mmap.mmap) -> list[str]:
    """The distinct external data locations of an ONNX model, in order of appearance.

    Args:
        model: the serialized ModelProto.
    """
    found: dict[str, None] = {}
    for match in _LOCATION.finditer(model):
        length = match[1][0] if len(match[1]) == 1 else match[1][0] & 0x7F | match[1][1] << 7
        found[model[match.end() : match.end() + length].decode("utf-8", "replace")] = None
    return list(found)


def external_files(path: Path) -> list[str]:
    """The same for a file, which is mapped, not read."""
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as model:
        return external_locations(model)
