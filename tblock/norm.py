"""The block's normalizations over the last axis, RMSNorm and LayerNorm, with one constructor.

Cast policy float32 for both: low precision is read, normalized in float32 and rounded once.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tblock import ops  # noqa: F401  (registers torch.ops.tblock)
from tblock.config import BlockConfig
from tblock.linear import wide_dtype, widened


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * (offset + weight). Source: Zhang and Sennrich 2019."""

    unit: Tensor

    def __init__(self, *, shape: Sequence[int], eps: float, weight_offset: float = 0.0) -> None:
        super().__init__()
        self.eps, self.weight_offset = eps, weight_offset
        self.weight = nn.Parameter(torch.full(tuple(shape), 1.0 - weight_offset))
        if len(shape) > 1:
            # From numpy: a block that is built without data (device meta) has its constants all the same.
            ones = torch.from_numpy(np.ones(shape[-1], np.float32))
            self.register_buffer("unit", ones, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D], or [..., H, E] to the same; dtype kept."""
        if self.weight.ndim == 1:
            return torch.ops.tblock.rms_norm(x, self.weight, eps=self.eps, weight_offset=self.weight_offset)
        # The op has one weight for each column: the weights of the heads come after it, before the rounding.
        wide = wide_dtype(x)
        unit, weight = widened(self.unit, wide), widened(self.weight, wide)
        y = torch.ops.tblock.rms_norm(widened(x, wide), unit, eps=self.eps, weight_offset=0.0)
        return widened(y * (weight + self.weight_offset if self.weight_offset else weight), x.dtype)


class LayerNorm(nn.Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias. Source: Ba et al. 2016."""

    def __init__(self, *, shape: Sequence[int], eps: float, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(tuple(shape)))
        self.bias = nn.Parameter(torch.zeros(tuple(shape))) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D], or [..., H, E] to the same; dtype kept."""
        wide = wide_dtype(x)
        weight, bias = widened(self.weight, wide), None if self.bias is None else widened(self.bias, wide)
        if weight.ndim == 1:
            y = F.layer_norm(widened(x, wide), weight.shape, weight, bias, self.eps)
        else:
            y = F.layer_norm(widened(x, wide), weight.shape[-1:], eps=self.eps) * weight
            y = y if bias is None else y + bias
        return widened(y, x.dtype)


def make_norm(config: BlockConfig, *shape: int) -> nn.Module:
    """The norm a config asks for over the last axis.

    Args:
        config: of the block.
        shape: of the weight, [D] or [H, E]; none: the model width.
    """
    shape = shape or (config.dim,)
    if config.norm == "rmsnorm":
        return RMSNorm(shape=shape, eps=config.norm_eps, weight_offset=config.norm_weight_offset)
    return LayerNorm(shape=shape, eps=config.norm_eps, bias=bool(config.norm_bias))
