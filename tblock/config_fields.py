"""The fields of a BlockConfig: names, kinds, meaning and defaults; nothing is computed or checked here.

Imports only the standard library and the words a field can take.
"""

from dataclasses import dataclass
from typing import Any

from tblock.choices import (
    Activation,
    FeedForward,
    Norm,
    NormPosition,
    Parallel,
    QkNorm,
    RopeLayout,
    RopeScaling,
    Router,
)

_DERIVED: Any = None
"""Default of the fields that follow from others where they are not given; never None in a BlockConfig."""

ACTIVATIONS: dict[FeedForward, Activation] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""FFN to its nonlinearity."""


@dataclass(frozen=True, kw_only=True)
class BlockFields:
    """One transformer block: attention plus a position-wise FFN, each with a residual and a normalization.

    Attributes:
        dim: model width D.
        num_heads: query heads H.
        num_kv_heads: key/value heads K; H % K == 0. None: H.
        head_dim: head width E. None: D / H.
        num_layers: blocks L of the whole model; scales the residual-output init by 1/sqrt(2L).
        max_position: positions 0 .. max_position - 1 are legal (tokens).
        norm: `rmsnorm` (Zhang and Sennrich 2019) or `layernorm` (Ba et al. 2016).
        norm_position: `pre` x + f(norm(x)); `post` norm(x + f(x)); `sandwich` x + norm(f(norm(x)));
            `inner_post` x + norm(f(x)) (OLMo 2).
        norm_eps: added to the variance inside the root.
        norm_bias: LayerNorm has a bias. None: True for layernorm, False for rmsnorm.
        norm_weight_offset: added to every RMSNorm weight; 1 in the Gemma family.
        parallel: `none`; `one_norm` x + attn(n(x)) + ffn(n(x)) (GPT-J, Phi); `two_norms` each its own
            (GPT-NeoX).
        causal: query i sees keys 0..i; otherwise every key.
        sliding_window: a query sees itself and the `sliding_window - 1` tokens before it. None: no limit.
        attn_scale: multiplies the scores. None: 1/sqrt(E).
        attn_soft_cap: cap * tanh(scores / cap) before the mask (Gemma 2). None: off.
        residual_multiplier: multiplies what attention and FFN add to the residual (Granite).
        qk_norm: `none`; `head`: norm over each head's E; `per_head`: likewise, each head with its own
            weights, [H, E] and [K, E] (Cohere); `full`: over the whole projection. Before RoPE.
        rope: rotary position embedding on q and k (Su et al. 2021); otherwise no positions in the block.
        rope_base: theta.
        rope_dim: rotated width R of each head, even; None: E.
        rope_layout: `half`: pairs (i, i + R/2) (GPT-NeoX, Hugging Face); `interleaved`: (2i, 2i + 1) (GPT-J,
            Meta).
        rope_scaling: `none`, `linear`, `llama3` or `yarn`, with the fields below.
        rope_factor: context extension factor, for any scaling.
        rope_original_max_position: context before scaling (tokens), for llama3 and yarn.
        rope_low_freq_factor, rope_high_freq_factor: llama3.
        rope_beta_fast, rope_beta_slow: yarn.
        rope_attention_factor: yarn multiplies cos and sin by it. None: 0.1 ln(factor) + 1.
        q_bias, k_bias, v_bias, out_bias, ffn_bias: biases of the projections; ffn_bias is for the whole FFN.
        ffn: `swiglu`, `geglu`, `geglu_tanh`: act(x Wg) * (x Wu), then Wd; `gelu`, `gelu_tanh`, `relu`,
            `relu2`: act(x Wu), then Wd.
        ffn_dim: hidden width F. None: 8/3 D rounded down to a multiple of 64 when gated, otherwise 4 D.
        num_experts: experts N of a sparse FFN, each of width ffn_dim; 0: dense.
        experts_per_token: experts each token goes to; 0 when dense.
        router: `softmax` or `sigmoid` over the router's scores.
        router_normalized: the chosen experts' weights are divided by their sum.
        shared_ffn_dim: width of an expert every token goes to; 0: none.
        init_std: standard deviation of the weights at init.
    """

    dim: int
    num_heads: int
    num_kv_heads: int = _DERIVED
    head_dim: int = _DERIVED
    num_layers: int = 1
    max_position: int = 2048
    norm: Norm = "rmsnorm"
    norm_position: NormPosition = "pre"
    norm_eps: float = 1e-6
    norm_bias: bool = _DERIVED
    norm_weight_offset: float = 0.0
    parallel: Parallel = "none"
    residual_multiplier: float = 1.0
    causal: bool = True
    sliding_window: int | None = None
    attn_scale: float = _DERIVED
    attn_soft_cap: float | None = None
    qk_norm: QkNorm = "none"
    rope: bool = True
    rope_base: float = 10000.0
    rope_dim: int = _DERIVED
    rope_layout: RopeLayout = "half"
    rope_scaling: RopeScaling = "none"
    rope_factor: float = 1.0
    rope_original_max_position: int | None = None
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_attention_factor: float = _DERIVED
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    ffn: FeedForward = "swiglu"
    ffn_dim: int = _DERIVED
    num_experts: int = 0
    experts_per_token: int = 0
    router: Router = "softmax"
    router_normalized: bool = True
    shared_ffn_dim: int = 0
    init_std: float = 0.02

    @property
    def gated(self) -> bool:
        """The FFN has a gate projection."""
        return self.ffn in ("swiglu", "geglu", "geglu_tanh")

    @property
    def activation(self) -> Activation:
        """The FFN's nonlinearity."""
        return ACTIVATIONS[self.ffn]

    @property
    def q_dim(self) -> int:
        """Width H * E of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width K * E of the key and of the value projection."""
        return self.num_kv_heads * self.head_dim
