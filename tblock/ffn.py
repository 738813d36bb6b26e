"""The position-wise FFN of one block: gated (SwiGLU, GeGLU) or a plain MLP.

Low precision: SwiGLU follows the contract's cast policy; the other activations are torch's, which compute in
float32 inside.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tblock.config import BlockConfig
from tblock.linear import Linear, wide_dtype, widened


class FeedForward(nn.Module):
    """down(act(gate(x)) * up(x)), or down(act(up(x))). Source: Shazeer 2020; Vaswani et al. 2017."""

    def __init__(self, config: BlockConfig, ffn_dim: int | None = None) -> None:
        super().__init__()
        hidden = config.ffn_dim if ffn_dim is None else ffn_dim
        self.gated, self.activation = config.gated, config.activation
        if self.gated:
            self.gate = Linear(config.dim, hidden, bias=config.ffn_bias)
        self.up = Linear(config.dim, hidden, bias=config.ffn_bias)
        self.down = Linear(hidden, config.dim, bias=config.ffn_bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D], same dtype."""
        if self.gated:
            return self.down(gated_activation(self.activation, self.gate(x_BSD), self.up(x_BSD)))
        return self.down(activate(self.activation, self.up(x_BSD)))


def gated_activation(activation: str, gate: Tensor, up: Tensor) -> Tensor:
    """act(gate) * up; SiLU goes through the fused op. Cast policy float32: one rounding."""
    if activation == "silu":
        return torch.ops.tblock.swiglu(gate, up)
    wide = wide_dtype(gate)
    return widened(_nonlinear(activation, widened(gate, wide)) * widened(up, wide), gate.dtype)


def activate(activation: str, x: Tensor) -> Tensor:
    """The named nonlinearity, elementwise. Cast policy float32: one rounding."""
    return widened(_nonlinear(activation, widened(x, wide_dtype(x))), x.dtype)


def _nonlinear(activation: str, x: Tensor) -> Tensor:
    if activation == "gelu":
        return F.gelu(x)
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if activation == "silu":
        return F.silu(x)
    x = F.relu(x)
    return x.square() if activation == "relu2" else x
