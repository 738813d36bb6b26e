"""The block's normalizations over the last axis, RMSNorm and LayerNorm, with one constructor.

Cast policy float32 for both: low precision is read, normalized in float32 and rounded once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tblock import ops  # noqa: F401  (registers torch.ops.tblock)
from tblock.config import BlockConfig
from tblock.linear import widened


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * (offset + weight). Source: Zhang and Sennrich 2019."""

    def __init__(self, *, dim: int, eps: float, weight_offset: float = 0.0) -> None:
        super().__init__()
        self.eps, self.weight_offset = eps, weight_offset
        self.weight = nn.Parameter(torch.full((dim,), 1.0 - weight_offset))

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D], same dtype."""
        return torch.ops.tblock.rms_norm(x, self.weight, eps=self.eps, weight_offset=self.weight_offset)


class LayerNorm(nn.Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias. Source: Ba et al. 2016."""

    def __init__(self, *, dim: int, eps: float, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D], same dtype."""
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        bias = None if self.bias is None else widened(self.bias, wide)
        y = F.layer_norm(widened(x, wide), self.weight.shape, widened(self.weight, wide), bias, self.eps)
        return widened(y, x.dtype)


def make_norm(config: BlockConfig, dim: int | None = None) -> nn.Module:
    """The norm a config asks for, over `dim` (None: the model width)."""
    dim = config.dim if dim is None else dim
    if config.norm == "rmsnorm":
        return RMSNorm(dim=dim, eps=config.norm_eps, weight_offset=config.norm_weight_offset)
    return LayerNorm(dim=dim, eps=config.norm_eps, bias=bool(config.norm_bias))
