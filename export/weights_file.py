"""The artifact's `weights.safetensors`, and where each tensor lies in it for ONNX files to point to."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from safetensors.torch import save_file

_ONNX_TYPES = {"F32": ir.DataType.FLOAT, "F16": ir.DataType.FLOAT16, "BF16": ir.DataType.BFLOAT16}


@dataclass(frozen=True)
class Slice:
    """One tensor's place in a safetensors file.

    Attributes:
        path: the file.
        dtype: safetensors dtype name.
        shape: of the tensor.
        offset, length: bytes from the start of the file.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int

    def as_external(self, name: str) -> ir.ExternalTensor:
        """The tensor as ONNX external data: a bare file name, offset and length."""
        return ir.ExternalTensor(
            self.path.name,
            self.offset,
            self.length,
            _ONNX_TYPES[self.dtype],
            shape=ir.Shape(self.shape),
            name=name,
            base_dir=self.path.parent,
        )


def write_weights(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, Slice]:
    """Write the weights once and say where each lies.

    Args:
        tensors: state-dict name to tensor, in the artifact's dtype; one that has several names (a layer used
            twice) is written under the first.
        path: of the new file.

    Returns:
        Every name given to its slice.
    """
    owners: dict[int, str] = {}
    first = {name: owners.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    save_file({name: tensors[name].detach().contiguous() for name in owners.values()}, path)
    slices = locate(path)
    return {name: slices[owner] for name, owner in first.items()}


def locate(path: Path) -> dict[str, Slice]:
    """Read the header of a safetensors file (format: 8 bytes length, JSON header, data)."""
    with path.open("rb") as file:
        size = int(np.frombuffer(file.read(8), np.uint64)[0])
        header = json.loads(file.read(size))
    return {
        name: Slice(path, entry["dtype"], tuple(entry["shape"]), 8 + size + start, end - start)
        for name, entry in header.items()
        if name != "__metadata__"
        for start, end in [entry["data_offsets"]]
    }
