"""Self-attention of one block: projections, QK norm, RoPE, the attention op, output projection.

Owns the parameters; the softmax itself is `tblock.ops.attention`.
"""

import torch
from torch import Tensor, nn

from tblock.config import BlockConfig
from tblock.linear import Linear
from tblock.norm import make_norm


class Attention(nn.Module):
    """out(attention(rope(norm(q(x))), rope(norm(k(x))), v(x))).

    Source: Vaswani et al. 2017; grouped heads Ainslie et al. 2023; QK norm Henry et al. 2020.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.q = Linear(config.dim, config.q_dim, bias=config.q_bias)
        self.k = Linear(config.dim, config.kv_dim, bias=config.k_bias)
        self.v = Linear(config.dim, config.kv_dim, bias=config.v_bias)
        self.out = Linear(config.q_dim, config.dim, bias=config.out_bias)
        if config.qk_norm != "none":
            self.q_norm, self.k_norm = (
                make_norm(config, *_norm_shape(config, heads))
                for heads in (config.num_heads, config.num_kv_heads)
            )

    def forward(self, x_BSD: Tensor, mask: Tensor | None, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        """Mix tokens.

        Args:
            x_BSD: [B, S, D].
            mask: [B, 1, 1, S] bool, True where a key is a real token; None: all are.
            cos, sin: [S, R/2] or [B, 1, S, R/2] rotation tables; None without RoPE.

        Returns:
            [B, S, D], dtype of x.
        """
        c = self.config
        q_BSX, k_BSX, v_BSX = self.q(x_BSD), self.k(x_BSD), self.v(x_BSD)
        if c.qk_norm == "full":
            q_BSX, k_BSX = self.q_norm(q_BSX), self.k_norm(k_BSX)
        q_BSHE, k_BSKE, v_BSKE = (
            t.unflatten(-1, (heads, c.head_dim))
            for t, heads in ((q_BSX, c.num_heads), (k_BSX, c.num_kv_heads), (v_BSX, c.num_kv_heads))
        )
        if c.qk_norm in ("head", "per_head"):
            q_BSHE, k_BSKE = self.q_norm(q_BSHE), self.k_norm(k_BSKE)
        q_BHSE, k_BKSE, v_BKSE = (t.transpose(1, 2) for t in (q_BSHE, k_BSKE, v_BSKE))
        if cos is not None and sin is not None:
            interleaved = int(c.rope_layout == "interleaved")
            q_BHSE = torch.ops.tblock.rope(q_BHSE, cos, sin, interleaved=interleaved)
            k_BKSE = torch.ops.tblock.rope(k_BKSE, cos, sin, interleaved=interleaved)
        y_BHSE = torch.ops.tblock.attention(
            q_BHSE,
            k_BKSE,
            v_BKSE,
            mask,
            scale=c.attn_scale,
            causal=int(c.causal),
            window=c.sliding_window or 0,
            soft_cap=c.attn_soft_cap or 0.0,
        )
        return self.out(y_BHSE.transpose(1, 2).flatten(-2))


def _norm_shape(config: BlockConfig, heads: int) -> tuple[int, ...]:
    """Of the weight that normalizes so many heads."""
    width = config.head_dim
    return {"head": (width,), "per_head": (heads, width), "full": (heads * width,)}[config.qk_norm]
