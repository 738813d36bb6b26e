"""What an engine file, its manifest entry and this machine tell before TensorRT is given the bytes.

Deserialising a wrong file costs a crash or an error without a cause. Owns these checks; imports no
TensorRT.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tblock.errors import ArtifactError
from tblock.machine import Gpu

TAGS = {"tensorrt": b"ftrt", "tensorrt-rtx": b"vtrt"}
"""First bytes of an engine. RTX: measured, 1.7.1. TensorRT: what torch_tensorrt looks for; not measured."""

_HEADER = 64
"""Bytes (tensorrt_rtx.Runtime.engine_header_size, 1.7.1)."""
_LENGTH = slice(16, 24)
"""Where in the header an RTX engine has its own length, little-endian (measured, 1.7.1)."""


def check_bytes(path: Path, runtime: str) -> None:
    """Look at the first bytes of an engine file.

    Args:
        path: the file.
        runtime: `tensorrt` or `tensorrt-rtx`.

    Raises:
        ArtifactError: missing, empty, cut, an ONNX model, an engine of the other kind, or no engine at all:
            says which.
    """
    if not path.is_file():
        raise ArtifactError(f"{path}: missing; copy the whole artifact folder, or export again")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER)
    again = "build the engine again"
    if not head:
        raise ArtifactError(f"{path}: empty; {again}")
    # An ONNX ModelProto starts with field 1, ir_version, a small varint (onnx.proto).
    if head[0] == 0x08 and len(head) > 1 and 1 <= head[1] <= 32:
        raise ArtifactError(
            f"{path}: an ONNX model, not an engine; build one with tblock build --runtime {runtime}"
        )
    for other, tag in TAGS.items():
        if other != runtime and head.startswith(tag):
            raise ArtifactError(f"{path}: an engine of {other}, not of {runtime}; build it for {runtime}")
    if runtime != "tensorrt-rtx":
        return  # its layout was not measured; the digest finds the rest
    if not head.startswith(TAGS[runtime]):
        raise ArtifactError(
            f"{path}: starts with {head[:4]!r}, a TensorRT-RTX engine with {TAGS[runtime]!r}: damaged, "
            f"or no engine; {again}"
        )
    declared = int.from_bytes(head[_LENGTH], "little") if len(head) == _HEADER else _HEADER
    if size < declared:
        raise ArtifactError(f"{path}: cut, {size} of {declared} bytes; copy it again, or {again}")


def check_version(path: Path, target: Mapping[str, Any], installed: str) -> None:
    """Compare the builder's version with the package that is to load the engine.

    Args:
        path: the engine, for the message.
        target: its manifest entry: `builder`, `version_compatible`.
        installed: version of the package here.

    Raises:
        ArtifactError: they differ (for a version-compatible engine: another major, or an older package).
    """
    built = str(target.get("builder", "unknown"))
    mine, theirs = _numbers(installed), _numbers(built)
    later = bool(target.get("version_compatible")) and theirs[:1] == mine[:1] and theirs <= mine
    if not theirs or not (theirs == mine or later):
        raise ArtifactError(
            f"{path}: built by version {built}, version {installed} is installed; install that one, "
            "or build again"
        )


def check_architecture(path: Path, target: Mapping[str, Any], gpu: Gpu) -> None:
    """Compare the GPUs the engine is for with the one here.

    Args:
        path: the engine, for the message.
        target: its manifest entry: `compute_capability` (what it was built for, in words), `device` (the
            builder's GPU).
        gpu: the one that is to run it.

    Raises:
        ArtifactError: the engine is not for this GPU.
    """
    text = str(target.get("compute_capability", ""))
    named = re.findall(r"\d+\.\d+", text)
    builder = re.search(r"compute capability (\d+\.\d+)", str(target.get("device") or ""))
    if "ampere_plus" in text:
        fits, wanted = _numbers(gpu.compute_capability) >= (8, 0), "8.0 and later"
    elif named:
        fits, wanted = gpu.compute_capability in named, ", ".join(named)
    elif builder:
        fits, wanted = gpu.compute_capability == builder[1], builder[1]
    else:
        return
    if not fits:
        raise ArtifactError(
            f"{path}: built for compute capability {wanted}, this {gpu.name} has {gpu.compute_capability}; "
            "build it for this GPU"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Major, minor and patch; the build number behind them does not change the format."""
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])
