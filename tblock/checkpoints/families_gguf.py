"""Family rows for GGUF: llama.cpp's metadata keys and tensor names, by `general.architecture`.

Only architectures whose reading is proven against transformers reading the same file are here. llama.cpp
rotates neighbouring pairs for `llama`, so that architecture's q and k rows are interleaved in the file; the
others' are not.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tblock.checkpoints.family import Embedding, Family, Rule, each_expert, from_interleaved, rules
from tblock.checkpoints.fields import Fields
from tblock.config import BlockConfig
from tblock.errors import ConfigError
from tblock.rope import inverse_frequencies

ROPE_FREQS = "rope_freqs.weight"
"""A tensor beside the layers that divides each frequency: how llama.cpp keeps Llama 3's RoPE scaling."""

IRRELEVANT = {
    "block_count": "read as the number of layers",
    "vocab_size": "the token table has it",
    "tensor_data_layout": "says where the rows' order came from; llama.cpp orders them the same way always",
    "rope.scaling.finetuned": "says how the model was trained",
    "rope.scaling.original_context_length": "only YaRN and LongRoPE use it, and those are refused",
    "final_logit_softcapping": "behind the last layer",
    "logit_scale": "behind the last layer",
    "pooling_type": "behind the last layer",
    "embedding_length_out": "behind the last layer",
    "decoder_start_token_id": "for generation",
}
"""Keys behind `{arch}.` that change no layer, and why."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.shared_kv_layers": (0,),
    "rope.scaling.attn_factor": (1.0,),
    "use_parallel_residual": (False,),
    "residual_scale": (1.0,),
    "embedding_scale": (1.0,),
    "expert_shared_count": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
}
"""Keys that say what the block lacks, and the values that ask for nothing."""

_QK = {"attn_q": "attn.q", "attn_k": "attn.k"}
_QK_NORM = {"attn_q_norm": "attn.q_norm", "attn_k_norm": "attn.k_norm"}
_ATTENTION = {"attn_v": "attn.v", "attn_output": "attn.out", "attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}
_DENSE = {"ffn_gate": "ffn.gate", "ffn_up": "ffn.up", "ffn_down": "ffn.down"}
_SANDWICH = {"post_attention_norm": "attn_out_norm", "post_ffw_norm": "ffn_out_norm"}
_PERMUTED_QK = (
    Rule(source="attn_q", targets=("attn.q",), take=from_interleaved),
    Rule(source="attn_k", targets=("attn.k",), take=from_interleaved),
)
_EXPERTS = (
    Rule(source="ffn_gate_inp", targets=("ffn.router",)),
    Rule(source="ffn_gate_exps", targets=("ffn.experts.{e}.gate",), take=each_expert),
    Rule(source="ffn_up_exps", targets=("ffn.experts.{e}.up",), take=each_expert),
    Rule(source="ffn_down_exps", targets=("ffn.experts.{e}.down",), take=each_expert),
)


def _decoder(fields: Fields, arch: str) -> dict[str, Any]:
    dim, heads = fields.count(f"{arch}.embedding_length"), fields.count(f"{arch}.attention.head_count")
    head_dim = fields.count(f"{arch}.attention.key_length", dim // heads)
    fields.refuse(
        f"{arch} in GGUF",
        **{f"{arch}.{key}": fine for key, fine in _NEUTRAL.items()},
        **{f"{arch}.attention.value_length": (head_dim,)},
    )
    return _rope_scaling(fields, arch) | {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": fields.integer(f"{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position": fields.integer(f"{arch}.context_length"),
        "norm_eps": _decimal(fields.number(f"{arch}.attention.layer_norm_rms_epsilon")),
        "ffn_dim": fields.integer(f"{arch}.feed_forward_length"),
        "rope_base": fields.number(f"{arch}.rope.freq_base", 10000.0),
        "rope_dim": fields.integer(f"{arch}.rope.dimension_count", head_dim),
    }


def _rope_scaling(fields: Fields, arch: str) -> dict[str, Any]:
    """As llama.cpp: a factor without a type is linear, the old key counts where the new is absent, 0 is 1."""
    old = fields.number(f"{arch}.rope.scale_linear", 0.0)
    factor = fields.number(f"{arch}.rope.scaling.factor", old)
    fields.refuse(f"{arch} in GGUF", **{f"{arch}.rope.scaling.type": ("none", "linear")})
    if fields.text(f"{arch}.rope.scaling.type", "linear") == "none" or factor in (0.0, 1.0):
        return {}
    return {"rope_scaling": "linear", "rope_factor": factor}


def _decimal(value: float) -> float:
    """The decimal a float32 of the metadata stands for: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value)))


def _llama(fields: Fields, layer: int) -> dict[str, Any]:
    absent = ("expert_count", "expert_used_count", "attention.sliding_window")
    fields.refuse("llama in GGUF", **{f"llama.{key}": (0,) for key in absent})
    return _llama3_scaling(fields, _decoder(fields, "llama"))


def _llama3_scaling(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """Llama 3 scaling behind the divisors, or a refusal: a block says scalings by name, not by table."""
    divisors = fields.items(ROPE_FREQS)
    if divisors is None:
        return config
    plain = inverse_frequencies(BlockConfig.from_dict(config, where=fields.where))
    named = config | {
        "rope_scaling": "llama3",
        "rope_factor": max(divisors, default=0.0),
        "rope_original_max_position": 8192,
    }
    scaled = inverse_frequencies(BlockConfig.from_dict(named, where=fields.where))
    if len(divisors) != len(plain) or not np.allclose(plain / divisors, scaled, rtol=1e-4, atol=0):
        raise ConfigError(
            f"{fields.where}: {ROPE_FREQS} is no Llama 3 scaling; give the Hugging Face folder instead"
        )
    return named


def _qwen2(fields: Fields, layer: int) -> dict[str, Any]:
    return _decoder(fields, "qwen2") | {"q_bias": True, "k_bias": True, "v_bias": True}


def _qwen3(fields: Fields, layer: int) -> dict[str, Any]:
    return _decoder(fields, "qwen3") | {"qk_norm": "head"}


def _qwen3moe(fields: Fields, layer: int) -> dict[str, Any]:
    # llama.cpp normalises the chosen experts' softmax for this architecture, whatever the file says.
    fields.refuse(
        "qwen3moe in GGUF", **{"qwen3moe.expert_weights_norm": (True,), "qwen3moe.expert_gating_func": (1,)}
    )
    return _decoder(fields, "qwen3moe") | {
        "qk_norm": "head",
        "ffn_dim": fields.integer("qwen3moe.expert_feed_forward_length"),
        "num_experts": fields.integer("qwen3moe.expert_count"),
        "experts_per_token": fields.integer("qwen3moe.expert_used_count"),
    }


_GEMMA2_27B_LAYERS = 46
"""That size scales scores by D / H instead of E, which its metadata does not say."""


def _gemma2(fields: Fields, layer: int) -> dict[str, Any]:
    if fields.integer("gemma2.block_count") == _GEMMA2_27B_LAYERS:
        raise ConfigError(
            f"{fields.where}: gemma2 27B has a score scale that GGUF does not carry; "
            "give the Hugging Face folder instead"
        )
    fields.refuse("gemma2 in GGUF", **{"gemma2.attention.sliding_window_pattern": (2,)})
    window = fields.integer("gemma2.attention.sliding_window", 4096)
    return _decoder(fields, "gemma2") | {
        # The file stores the norms with the unit offset added.
        "norm_weight_offset": 0.0,
        "norm_position": "sandwich",
        "ffn": "geglu_tanh",
        "attn_soft_cap": fields.number("gemma2.attn_logit_softcapping", 50.0),
        "sliding_window": window if layer % 2 == 0 else None,
    }


def _row(
    arch: str,
    name: str,
    config: Callable[[Fields, int], dict[str, Any]],
    table: tuple[Rule, ...],
    embedding: Embedding,
) -> tuple[str, Family]:
    row = Family(
        name=name,
        prefixes=("",),
        layers=("blk",),
        config=config,
        rules=table,
        embedding=embedding,
        depth=f"{arch}.block_count",
        known={f"{arch}.{key}": why for key, why in IRRELEVANT.items()},
        scope=f"{arch}.",
        advice="give the Hugging Face folder instead",
    )
    return arch, row


_TOKENS = Embedding(tokens="token_embd.weight")
_SCALED = Embedding(
    tokens="token_embd.weight", scale=lambda fields: fields.count("gemma2.embedding_length") ** 0.5
)

ROWS: dict[str, Family] = dict(
    (
        _row("llama", "llama", _llama, rules(_ATTENTION | _DENSE) + _PERMUTED_QK, _TOKENS),
        _row("qwen2", "qwen2", _qwen2, rules(_QK | _ATTENTION | _DENSE), _TOKENS),
        _row("qwen3", "qwen3", _qwen3, rules(_QK | _QK_NORM | _ATTENTION | _DENSE), _TOKENS),
        _row("qwen3moe", "qwen3_moe", _qwen3moe, rules(_QK | _QK_NORM | _ATTENTION) + _EXPERTS, _TOKENS),
        _row("gemma2", "gemma2", _gemma2, rules(_QK | _ATTENTION | _DENSE | _SANDWICH), _SCALED),
    )
)
"""`general.architecture` to its row."""
