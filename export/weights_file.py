"""The artifact's `weights.safetensors`, and where each tensor lies in it for ONNX files to point to."""

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
import torch
from safetensors.torch import save_file

from tblock.checkpoints.safetensors_source import Entry, read_header
from tblock.dtypes import DTYPES

_ONNX_TYPES = {row.safetensors: ir.DataType(row.onnx) for row in DTYPES.values()}


def write_weights(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, Entry]:
    """Write the weights once and say where each lies.

    Args:
        tensors: state-dict name to tensor, in the artifact's dtype; one that has several names (a layer used
            twice) is written under the first.
        path: of the new file.

    Returns:
        Every name given to its place.
    """
    owners: dict[int, str] = {}
    first = {name: owners.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    save_file({name: tensors[name].detach().contiguous() for name in owners.values()}, path)
    entries = read_header(path)
    return {name: entries[owner] for name, owner in first.items()}


def as_external(entry: Entry, name: str) -> ir.ExternalTensor:
    """A tensor of the weights file as ONNX external data: a bare file name, offset and length."""
    return ir.ExternalTensor(
        entry.file.path.name,
        entry.offset,
        entry.length,
        _ONNX_TYPES[entry.dtype],
        shape=ir.Shape(entry.shape),
        name=name,
        base_dir=entry.file.path.parent,
    )
