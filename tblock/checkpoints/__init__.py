"""Checkpoints: layers of published models as config and weights (Hugging Face folders, safetensors, GGUF).

Owns reading and naming, and loads no torch. `tblock.checkpoints.probe` (which does) runs a layer against the
family's own implementation.
"""

from tblock.checkpoints.checkpoint import Checkpoint
from tblock.checkpoints.opening import open_checkpoint
from tblock.checkpoints.torch_layer import from_torch_layer, from_torch_state

__all__ = ["Checkpoint", "from_torch_layer", "from_torch_state", "open_checkpoint"]
