"""Checkpoints: layers of published models as config and weights (Hugging Face folders, safetensors, GGUF).

Owns reading and naming, and loads no torch. `tblock.checkpoints.probe` (which does) runs a layer against the
family's own implementation.

`torch.nn.TransformerEncoderLayer` is no file. It is imported from the module, which says norm_first,
activation and eps itself (`from_torch_layer`), or from a state dict plus the arguments that the dict does not
carry (`from_torch_state`), and then exported as a Block:

    import torch
    from tblock import Block
    from tblock.checkpoints import from_torch_layer
    from tblock.export import export
    from tblock.weights import fill

    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
    config, weights = from_torch_layer(layer, causal=False)
    block = Block(config)
    fill(block, weights, dtype=torch.float32, where="my layer")
    export(block, "artifact")
"""

from tblock.checkpoints.checkpoint import Checkpoint
from tblock.checkpoints.opening import open_checkpoint
from tblock.checkpoints.torch_layer import from_torch_layer, from_torch_state

__all__ = ["Checkpoint", "from_torch_layer", "from_torch_state", "open_checkpoint"]
