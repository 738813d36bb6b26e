"""Writing one layer of a GGUF file as a small GGUF of its own, for transformers' own reader.

transformers drops every RoPE scaling of the file; `scale_rotation` puts it back from the file's own numbers.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tblock.checkpoints.checkpoint import Checkpoint
from tblock.checkpoints.gguf_source import GgufSource
from tblock.checkpoints.layer_copy import SMALL_VOCAB, SMALL_WINDOW

GGUF_NAME = "layer.gguf"
"""File name of a GGUF copy."""


def copy_gguf_layer(checkpoint: Checkpoint, layer: int, folder: Path) -> tuple[int, int | None]:
    """Write GGUF_NAME into a folder.

    Args:
        checkpoint: from a GGUF file.
        layer: its number.
        folder: exists.

    Returns:
        The layer's number in the copy, and the window before it was shrunk (tokens; None: no window).
    """
    import gguf

    source = checkpoint.source
    assert isinstance(source, GgufSource)
    arch = source.metadata["general.architecture"]
    # Gemma 2 alternates windows by the layer's number, which no key spells out: keep it even or odd.
    index = layer % 2 if arch == "gemma2" else 0
    writer = gguf.GGUFWriter(folder / GGUF_NAME, arch)
    for key, value in source.metadata.items():
        if not key.startswith(f"{arch}.") or key in (f"{arch}.block_count", f"{arch}.vocab_size"):
            continue
        if key.startswith(f"{arch}.rope.scal"):
            continue  # never scaled twice, should transformers learn to read it: scale_rotation does
        if key == f"{arch}.attention.sliding_window":
            value = min(value, SMALL_WINDOW)
        adders: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        adders |= {str: writer.add_string, list: writer.add_array}
        adders[type(value)](key, value)
    writer.add_uint32(f"{arch}.block_count", index + 1)
    writer.add_uint32(f"{arch}.vocab_size", SMALL_VOCAB)
    root = checkpoint.layer_root
    for name in checkpoint.tensor_names(layer):
        raw, kind = source.read_stored(name)
        renamed = f"{root}{index}.{name.removeprefix(f'{root}{layer}.')}"
        writer.add_tensor(renamed, np.ascontiguousarray(raw), raw_dtype=gguf.GGMLQuantizationType(kind))
    dim = checkpoint.config(layer).dim
    writer.add_tensor("token_embd.weight", np.zeros((SMALL_VOCAB, dim), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(dim, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return index, source.metadata.get(f"{arch}.attention.sliding_window")


def scale_rotation(model: Any, source: GgufSource) -> None:
    """Divide the model's inverse frequencies as llama.cpp does: by the file's factor and its own divisors.

    Args:
        model: transformers' base model, changed in place.
        source: the whole file, not the copy.
    """
    arch, values = source.metadata["general.architecture"], source.metadata
    divisor = np.float32(1.0)
    if values.get(f"{arch}.rope.scaling.type", "linear") == "linear":
        old = values.get(f"{arch}.rope.scale_linear", 0.0)
        divisor = np.float32(values.get(f"{arch}.rope.scaling.factor", old) or 1.0)
    divisors = source.read("rope_freqs.weight") if "rope_freqs.weight" in source.names() else np.ones(1)
    frequencies = model.rotary_emb.inv_freq
    frequencies.div_(frequencies.new_tensor((divisors * divisor).tolist()))
