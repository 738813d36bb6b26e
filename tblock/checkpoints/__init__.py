"""Checkpoints: layers of published models as config and weights (Hugging Face folders, safetensors, GGUF).

Owns reading and naming, and loads no torch. `tblock.checkpoints.probe` (which does) runs a layer against the
family's own implementation.

`torch.nn.TransformerEncoderLayer` is no file: it is imported from the module, or from its state dict plus the
arguments that the dict does not carry, and exported as a Block:

    config, weights = from_torch_layer(layer, causal=False)   # norm_first, activation, eps: read off the module
    block = Block(config)
    fill(block, weights, dtype=torch.float32, where="my layer")  # tblock.weights.fill
    export(block, "artifact")                                  # tblock.export.export
"""

from tblock.checkpoints.checkpoint import Checkpoint
from tblock.checkpoints.opening import open_checkpoint
from tblock.checkpoints.torch_layer import from_torch_layer, from_torch_state

__all__ = ["Checkpoint", "from_torch_layer", "from_torch_state", "open_checkpoint"]
