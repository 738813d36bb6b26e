"""The check of every input against the manifest, before any runtime sees it.

Runtimes disagree about wrong inputs: ONNX Runtime names an axis, AOTInductor computes on garbage without a
word. So the check is ours, the same in front of all of them. Owns conversion to numpy as well. Imports no
runtime.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tblock.dtypes import DTYPES
from tblock.errors import ArtifactError
from tblock.manifest import Manifest, TensorSpec
from tblock.ranges import LETTERS
from tblock.runtimes.dlpack import from_dlpack

POSITION_IDS = "position_ids"


def check_inputs(
    manifest: Manifest, inputs: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Convert and check the inputs of one call.

    Args:
        manifest: of the artifact.
        inputs: name to numpy array, or to anything with DLPack on the CPU.

    Returns:
        The arrays in the manifest's order, C-contiguous (copied where they were not); letter to size, with T
        = P + S where there is a past.

    Raises:
        ArtifactError: a name, rank, dtype, width, size or position outside the manifest; names input, axis
            and limit.
    """
    known = [spec.name for spec in manifest.inputs]
    for name in inputs:
        if name not in known:
            raise ArtifactError(f"input {name}: not an input of this artifact; it takes {', '.join(known)}")
    arrays: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    owners: dict[str, str] = {}
    for spec in manifest.inputs:
        if spec.name not in inputs:
            raise ArtifactError(f"input {spec.name}: missing; this artifact takes {', '.join(known)}")
        array = as_array(spec.name, inputs[spec.name])
        _check_tensor(manifest, spec, array, sizes, owners)
        arrays[spec.name] = np.ascontiguousarray(array)
    _check_positions(manifest, arrays, sizes)
    if "P" in sizes and "S" in sizes:
        sizes["T"] = sizes["P"] + sizes["S"]
    return arrays, sizes


def as_array(name: str, value: Any) -> np.ndarray:
    """numpy as it is; anything else through DLPack.

    Raises:
        ArtifactError: neither, or the tensor cannot be read here (another device, requires grad).
    """
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__"):
        raise ArtifactError(
            f"input {name}: got {type(value).__name__}, wanted a numpy array or anything with DLPack"
        )
    return from_dlpack(name, value)


def output_shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Shape of an output for the letters of one call; None where a letter is not an input's."""
    if any(isinstance(d, str) and d not in sizes for d in spec.dims):
        return None
    return tuple(sizes[d] if isinstance(d, str) else d for d in spec.dims)


def shape_label(sizes: Mapping[str, int]) -> str:
    """Letters and sizes as in `B2 S7`, for rows and test names."""
    return " ".join(f"{letter}{size}" for letter, size in sizes.items() if letter != "T")


def _check_tensor(
    manifest: Manifest, spec: TensorSpec, array: np.ndarray, sizes: dict[str, int], owners: dict[str, str]
) -> None:
    wanted = "[" + ", ".join(map(str, spec.dims)) + "]"
    if array.ndim != len(spec.dims):
        raise ArtifactError(f"input {spec.name}: rank {array.ndim} {list(array.shape)}, wanted {wanted}")
    if array.dtype != DTYPES[spec.dtype].numpy:
        got = array.dtype.name if array.dtype.isnative else array.dtype.str
        raise ArtifactError(f"input {spec.name}: dtype {got}, wanted {spec.dtype}")
    for axis, (dim, size) in enumerate(zip(spec.dims, array.shape, strict=True)):
        where = f"input {spec.name}: "
        if not isinstance(dim, str):
            if size != dim:
                raise ArtifactError(f"{where}axis {axis} is {size}, wanted {dim} (dims {wanted})")
            continue
        if dim in sizes and sizes[dim] != size:
            raise ArtifactError(f"{where}{dim}={size}: input {owners[dim]} has {dim}={sizes[dim]}")
        sizes.setdefault(dim, size)
        owners.setdefault(dim, spec.name)
        check_size(manifest, where, dim, size)


def check_size(manifest: Manifest, where: str, letter: str, size: int) -> None:
    """Compare one dynamic dimension with its declared range.

    Args:
        manifest: of the artifact.
        where: in front of the message, for example `input x: `.
        letter, size: of the dimension.

    Raises:
        ArtifactError: outside.
    """
    limits = manifest.ranges.get(letter)
    if limits is None or size in limits:
        return
    side, word, limit = (
        ("below", "minimum", limits.min) if size < limits.min else ("above", "maximum", limits.max)
    )
    flag = f"; export with a wider --{LETTERS[letter]}" if letter in LETTERS and size > 0 else ""
    raise ArtifactError(f"{where}{letter}={size}: {side} the declared {word} {limit}{flag}")


def _check_positions(manifest: Manifest, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
    """A position outside the RoPE tables wraps silently in some runtimes (-1 in eager and ONNX Runtime)."""
    limits = [c.max_position for c in manifest.configs if c.rope]
    if not limits:
        return
    limit = min(limits)
    positions = arrays.get(POSITION_IDS)
    if positions is None:
        length = sizes.get("P", 0) + sizes.get("S", 0)
        if length > limit:
            raise ArtifactError(f"input x: S={length}: above max_position={limit} of the RoPE tables")
        return
    bad = (positions < 0) | (positions >= limit)
    if bad.any():
        where = np.unravel_index(int(np.argmax(bad)), bad.shape)
        value = int(positions[where])
        index = ", ".join(str(int(i)) for i in where)
        raise ArtifactError(
            f"input {POSITION_IDS}: {value} at [{index}], wanted 0 .. {limit - 1} (max_position={limit})"
        )
