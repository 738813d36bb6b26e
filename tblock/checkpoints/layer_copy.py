"""Writing one layer of a checkpoint as a small checkpoint of its own, for transformers' own loader to read.

Tensors are copied as stored. The settings are read from the file by transformers itself and never pass
through ours; only layer number, depth, vocabulary and sliding window change.
"""

from pathlib import Path
from typing import Any

from tblock.checkpoints.checkpoint import Checkpoint

SMALL_VOCAB = 64
"""Rows of the stand-in token table: hidden states are given, tokens are not used."""

SMALL_WINDOW = 5
"""Keys a sliding window is shrunk to, so that a short sequence crosses it."""

_ONE_FOR_EACH_LAYER = ("layer_types", "no_rope_layers", "mlp_layer_types")
"""Attributes of config classes that hold a list with an item for each layer."""

_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def copy_safetensors_layer(
    checkpoint: Checkpoint, layer: int, folder: Path, transformers: Any
) -> tuple[Any, int, int | None]:
    """Write model.safetensors into a folder.

    Args:
        checkpoint: from safetensors.
        layer: its number.
        folder: exists.
        transformers: the package; its config class says what kind of layer this one is.

    Returns:
        The config of the copy, the layer's number in it, and the window before it was shrunk (tokens; None:
        no window).
    """
    from safetensors.torch import save_file

    from tblock.weights import to_tensor

    path = checkpoint.path
    config = transformers.AutoConfig.from_pretrained(
        path if path.is_dir() else path.parent, trust_remote_code=False
    )
    config = getattr(config, "text_config", config)
    index, window = _keep_one(config, layer), getattr(config, "sliding_window", None)
    if window is not None:
        config.sliding_window = min(window, SMALL_WINDOW)
    root = checkpoint.layer_root
    behind = root.removeprefix(checkpoint.prefix)
    tensors = {
        f"{behind}{index}.{name.removeprefix(f'{root}{layer}.')}": to_tensor(
            checkpoint.source.read(name)
        ).clone()
        for name in checkpoint.tensor_names(layer)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return config, index, window


def _keep_one(config: Any, layer: int) -> int:
    """Change a config to a model of that layer and few tokens; returns the layer's number in it."""
    # Scores scaled by the layer's number: then the number has to stay.
    index = layer if getattr(config, "scale_attn_by_inverse_layer_idx", False) else 0
    for name in _ONE_FOR_EACH_LAYER:
        if getattr(config, name, None):
            setattr(config, name, [getattr(config, name)[layer]])
    if hasattr(config, "mlp_only_layers"):
        sparse = layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0
        config.mlp_only_layers, config.decoder_sparse_step = [] if sparse else [0], 1
    config.num_hidden_layers = index + 1
    if hasattr(config, "decoder_layers"):
        config.decoder_layers = 1
    config.vocab_size = SMALL_VOCAB
    for name in _TOKEN_IDS:
        value = getattr(config, name, None)
        if value is not None:
            setattr(config, name, min(value, 3) if isinstance(value, int) else None)
    return index
