"""BlockConfig: everything that defines one transformer block, as one flat frozen dataclass.

Owns the fields, their validation and the JSON form. Nothing about a backend is in it; imports no torch.
"""

import dataclasses
import difflib
import json
import math
from dataclasses import dataclass
from pathlib import Path
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
from tblock.config_checks import check_combinations, check_types, positive
from tblock.errors import ConfigError

FFN_MULTIPLE = 64
"""Gated hidden widths are rounded down to a multiple of this (8/3 D; 64 keeps GEMM tiles full)."""

_DERIVED: Any = None
"""Default of the fields that the constructor fills in; they are never None afterwards."""


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One transformer block: attention plus a position-wise FFN, each with a residual and a normalization.

    Fields left at None are filled in at construction, so a constructed config (and its JSON) is explicit.

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
        qk_norm: `none`; `head`: norm over each head's E; `full`: over the whole projection. Before RoPE.
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

    def __post_init__(self) -> None:
        check_types(self)
        positive(self, "dim", "num_heads", "num_layers", "max_position")
        self._fill("num_kv_heads", self.num_heads)
        if self.head_dim is None and self.dim % self.num_heads:
            raise ConfigError(f"num_heads={self.num_heads}: must divide dim={self.dim}, or give head_dim")
        self._fill("head_dim", self.dim // self.num_heads)
        self._fill("norm_bias", self.norm == "layernorm")
        self._fill("attn_scale", 1.0 / math.sqrt(max(self.head_dim, 1)))
        self._fill("rope_dim", self.head_dim if self.rope else 0)
        self._fill(
            "ffn_dim", self.dim * 8 // 3 // FFN_MULTIPLE * FFN_MULTIPLE if self.gated else 4 * self.dim
        )
        if self.rope_scaling == "yarn":
            self._fill("rope_attention_factor", 0.1 * math.log(max(self.rope_factor, 1.0)) + 1.0)
        self._fill("rope_attention_factor", 1.0)
        check_combinations(self)

    def _fill(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    @property
    def gated(self) -> bool:
        """The FFN has a gate projection."""
        return self.ffn in ("swiglu", "geglu", "geglu_tanh")

    @property
    def activation(self) -> Activation:
        """The FFN's nonlinearity."""
        return _ACTIVATIONS[self.ffn]

    @property
    def q_dim(self) -> int:
        """Width H * E of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width K * E of the key and of the value projection."""
        return self.num_kv_heads * self.head_dim

    def parameter_count(self, *, active: bool = False) -> int:
        """Weights of one block (scalars); `active`: of experts, only those one token meets."""
        from tblock.counts import parameter_count

        return parameter_count(self, active=active)

    def flop_count(self, *, batch: int, seq: int, past: int = 0) -> int:
        """FLOPs of one forward pass of one block at B, S, P (tokens), a multiply-add counted as two."""
        from tblock.counts import flop_count

        return flop_count(self, batch=batch, seq=seq, past=past)

    def replace(self, **changes: Any) -> "BlockConfig":
        """A copy with some fields changed and the whole of it checked again.

        Raises:
            ConfigError: a field is unknown or the combination makes no sense.
        """
        return BlockConfig.from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any], where: str = "config") -> "BlockConfig":
        """Build from a mapping; missing fields take their defaults.

        Args:
            fields: field name to value.
            where: named in front of the message.

        Raises:
            ConfigError: not a mapping, an unknown or missing field, or a bad value.
        """
        if not isinstance(fields, dict):
            raise ConfigError(
                f"{where}: got {type(fields).__name__}, wanted a JSON object of BlockConfig fields"
            )
        known = [f.name for f in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise ConfigError(f"{where}: unknown field {name!r}; {hint}")
        for name in ("dim", "num_heads"):
            if name not in fields:
                raise ConfigError(f"{where}: field {name!r} is missing")
        return cls(**fields)

    def to_json(self) -> str:
        """The JSON form, one field a line."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, path: str | Path) -> "BlockConfig":
        """Read a config file.

        Raises:
            ConfigError: the file is missing, is not JSON, or its fields make no sense.
        """
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"config {path}: {error.strerror or error}; give a JSON file of BlockConfig fields"
            ) from None
        except ValueError as error:
            raise ConfigError(f"config {path}: not JSON ({error})") from None
        return cls.from_dict(fields, where=f"config {path}")


_ACTIVATIONS: dict[FeedForward, Activation] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
