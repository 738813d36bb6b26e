"""A sparse FFN: a router sends each token to its top experts.

Every expert computes every token and the router's weights mix the results of the chosen. So no shape depends
on data, a trace freezes no expert, and an expert without a token is nothing special; the price is N / top-k
times the FLOPs of a sparse kernel. The unchosen are left out by selection, not by a weight of 0: one that
overflows on a token that is not its own would turn 0 * inf into NaN.
"""

import torch
from torch import Tensor, nn

from tblock.config import BlockConfig
from tblock.ffn import FeedForward
from tblock.linear import Linear, widened

SMALLEST_SUM = 1e-20
"""Sigmoid scores can all round to 0; a token without any then gets nothing from the experts, and no NaN."""


class MixtureOfExperts(nn.Module):
    """sum over the top-k experts e of w_e(x) * ffn_e(x), plus a shared expert.

    Source: Shazeer et al. 2017; Jiang et al. 2024.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Linear(config.dim, config.num_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.num_experts))
        if config.shared_ffn_dim:
            self.shared = FeedForward(config, config.shared_ffn_dim)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D], same dtype. Routing and mixing run in float32."""
        weight_BSN = self.mixing_weights(x_BSD)
        y_BSD = None
        for n, expert in enumerate(self.experts):
            weight_BS1 = weight_BSN[..., n : n + 1]
            part = expert(x_BSD).to(weight_BSN.dtype).masked_fill(weight_BS1 == 0, 0.0) * weight_BS1
            y_BSD = part if y_BSD is None else y_BSD + part
        assert y_BSD is not None
        y_BSD = widened(y_BSD, x_BSD.dtype)
        return y_BSD + self.shared(x_BSD) if self.config.shared_ffn_dim else y_BSD

    def mixing_weights(self, x_BSD: Tensor) -> Tensor:
        """Each expert's share of each token, 0 for the unchosen.

        Returns:
            [B, S, N] float32 (float64 when x is).
        """
        c = self.config
        logits_BSN = self.router(x_BSD)
        logits_BSN = widened(logits_BSN, torch.promote_types(x_BSD.dtype, torch.float32))
        scores_BSN = logits_BSN.softmax(-1) if c.router == "softmax" else logits_BSN.sigmoid()
        top_BSk, index_BSk = scores_BSN.topk(c.experts_per_token, dim=-1)
        if c.router_normalized:
            total_BS1 = top_BSk.sum(-1, keepdim=True)
            top_BSk = top_BSk / (total_BS1.clamp_min(SMALLEST_SUM) if c.router == "sigmoid" else total_BS1)
        return torch.zeros_like(scores_BSN).scatter(-1, index_BSk, top_BSk)
