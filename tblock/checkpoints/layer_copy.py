"""Writing one layer of a checkpoint as a small checkpoint of its own, for transformers' own loader to read.

Tensors are copied as stored; only layer number, depth, vocabulary and sliding window change.
"""

import copy
import json
from pathlib import Path
from typing import Any

from tblock.checkpoints.checkpoint import Checkpoint

SMALL_VOCAB = 64
"""Rows of the stand-in token table: hidden states are given, tokens are not used."""

SMALL_WINDOW = 5
"""Keys a sliding window is shrunk to, so that a short sequence crosses it."""


def copy_safetensors_layer(
    checkpoint: Checkpoint, layer: int, folder: Path, transformers: Any
) -> tuple[int, int | None]:
    """Write config.json and model.safetensors into a folder.

    Args:
        checkpoint: from safetensors.
        layer: its number.
        folder: exists.
        transformers: the package; its config class says what kind of layer this one is.

    Returns:
        The layer's number in the copy, and the window before it was shrunk (tokens; None: no window).
    """
    from safetensors.torch import save_file

    from tblock.weights import to_tensor

    # A copy to the bottom: transformers rewrites the dictionaries it is given.
    values = copy.deepcopy(checkpoint.fields.values)
    values.setdefault("model_type", checkpoint.family)
    # The full config decides what kind of layer this one is; its own class does that, not our row.
    full = transformers.AutoConfig.for_model(**copy.deepcopy(values))
    # GPT-2 can scale scores by the layer's number: then the number has to stay.
    index = layer if values.get("scale_attn_by_inverse_layer_idx") else 0
    values[checkpoint.depth_key] = index + 1
    values |= {"vocab_size": SMALL_VOCAB, "decoder_layers": 1}
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        values[key] = min(values[key], 3) if isinstance(values.get(key), int) else None
    if getattr(full, "layer_types", None):
        values["layer_types"] = [full.layer_types[layer]]
    window = getattr(full, "sliding_window", None)
    if window is not None:
        values["sliding_window"] = min(window, SMALL_WINDOW)
    if checkpoint.family == "qwen3_moe":
        sparse = layer not in full.mlp_only_layers and (layer + 1) % full.decoder_sparse_step == 0
        values |= {"mlp_only_layers": [] if sparse else [0], "decoder_sparse_step": 1}
    (folder / "config.json").write_text(json.dumps(values))
    root = checkpoint.layer_root
    behind = root.removeprefix(checkpoint.prefix)
    tensors = {
        f"{behind}{index}.{name.removeprefix(f'{root}{layer}.')}": to_tensor(
            checkpoint.source.read(name)
        ).clone()
        for name in checkpoint.tensor_names(layer)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return index, window
