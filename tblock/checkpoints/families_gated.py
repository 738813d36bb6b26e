"""Family rows: decoders with a gated FFN (Llama and its descendants), Hugging Face layout.

Sources: each family's config.json and modeling file in transformers; proven against those in tests/families.
"""

from typing import Any

from tblock.checkpoints.family import Embedding, Family, Rule, halves, qkv_rows, rules
from tblock.checkpoints.fields import Fields
from tblock.checkpoints.irrelevant import IRRELEVANT
from tblock.checkpoints.rope_fields import rope_fields
from tblock.errors import ConfigError

_ATTENTION = {
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.o_proj": "attn.out",
}
_QK_NORM = {"self_attn.q_norm": "attn.q_norm", "self_attn.k_norm": "attn.k_norm"}
_MLP = {"mlp.gate_proj": "ffn.gate", "mlp.up_proj": "ffn.up", "mlp.down_proj": "ffn.down"}
_PRE = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_SANDWICH = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "attn_out_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "ffn_out_norm",
}
_QWEN_EXPERTS = {
    "mlp.gate": "ffn.router",
    "mlp.experts.{e}.gate_proj": "ffn.experts.{e}.gate",
    "mlp.experts.{e}.up_proj": "ffn.experts.{e}.up",
    "mlp.experts.{e}.down_proj": "ffn.experts.{e}.down",
}
_MIXTRAL_EXPERTS = {
    "block_sparse_moe.gate": "ffn.router",
    "block_sparse_moe.experts.{e}.w1": "ffn.experts.{e}.gate",
    "block_sparse_moe.experts.{e}.w3": "ffn.experts.{e}.up",
    "block_sparse_moe.experts.{e}.w2": "ffn.experts.{e}.down",
}

_PREFIXES = ("model.", "")
_LAYERS = ("layers",)
_BUFFERS = (r"self_attn\.rotary_emb\.inv_freq",)
_TOKENS = Embedding(tokens="embed_tokens.weight")
_SCALED_TOKENS = Embedding(
    tokens="embed_tokens.weight", scale=lambda fields: fields.count("hidden_size") ** 0.5
)
_MULTIPLIED_TOKENS = Embedding(
    tokens="embed_tokens.weight", scale=lambda fields: fields.number("embedding_multiplier")
)


def _decoder(fields: Fields, activation: str = "hidden_act") -> dict[str, Any]:
    """What every row here has in common."""
    dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    return {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": fields.count("num_key_value_heads", heads),
        "head_dim": fields.count("head_dim", dim // heads),
        "max_position": fields.integer("max_position_embeddings"),
        "norm_eps": fields.number("rms_norm_eps"),
        "ffn": fields.gated_ffn(activation),
        "ffn_dim": fields.integer("intermediate_size"),
    }


def _biases(fields: Fields) -> dict[str, bool]:
    given = fields.flag("attention_bias")
    return {f"{name}_bias": given for name in ("q", "k", "v", "out")}


def _rotated(fields: Fields, activation: str = "hidden_act") -> dict[str, Any]:
    common = _decoder(fields, activation)
    return common | rope_fields(fields, head_dim=common["head_dim"])


def _llama(fields: Fields, layer: int) -> dict[str, Any]:
    return _rotated(fields) | _biases(fields) | {"ffn_bias": fields.flag("mlp_bias")}


def _granite(fields: Fields, layer: int) -> dict[str, Any]:
    scales = {"attn_scale": "attention_multiplier", "residual_multiplier": "residual_multiplier"}
    return _llama(fields, layer) | {name: fields.positive(key) for name, key in scales.items()}


def _smollm3(fields: Fields, layer: int) -> dict[str, Any]:
    """Llama with layers that do not rotate, and windows, if any, in these or in the listed ones."""
    interval, listed = fields.count("no_rope_layer_interval"), fields.items("no_rope_layers")
    rotates = bool((layer + 1) % interval) if listed is None else bool(fields.at("no_rope_layers", layer))
    slides, asked = fields.slides(layer), fields.flag("use_sliding_window")
    window = fields.count("sliding_window", None)
    config = _llama(fields, layer) | {
        # Layers that the list names slide whatever the switch says.
        "sliding_window": window if (asked and not rotates if slides is None else slides) else None
    }
    return (
        config if rotates else {k: v for k, v in config.items() if not k.startswith("rope")} | {"rope": False}
    )


def _windowed(fields: Fields, layer: int) -> dict[str, Any]:
    """Mistral, Phi-3."""
    return _rotated(fields) | {"sliding_window": fields.count("sliding_window", None)}


def _qwen_window(fields: Fields, layer: int) -> int | None:
    """Qwen: off unless asked for, then on the upper layers or those the list names."""
    listed, first = fields.slides(layer), fields.integer("max_window_layers")
    window = fields.count("sliding_window", None)
    sliding = layer >= first if listed is None else listed
    return window if fields.flag("use_sliding_window") and sliding else None


def _qwen2(fields: Fields, layer: int) -> dict[str, Any]:
    biases = {"q_bias": True, "k_bias": True, "v_bias": True}
    return _rotated(fields) | biases | {"sliding_window": _qwen_window(fields, layer)}


def _qwen3(fields: Fields, layer: int) -> dict[str, Any]:
    own = {"qk_norm": "head", "sliding_window": _qwen_window(fields, layer)}
    return _rotated(fields) | _biases(fields) | own


def _qwen3_moe(fields: Fields, layer: int) -> dict[str, Any]:
    window, asked = fields.count("sliding_window", None), fields.flag("use_sliding_window")
    own: dict[str, Any] = {"qk_norm": "head", "sliding_window": window if asked else None}
    experts = fields.integer("num_local_experts", fields.integer("num_experts"))
    sparse = {
        "ffn_dim": fields.integer("moe_intermediate_size"),
        "num_experts": experts,
        "experts_per_token": fields.integer("num_experts_per_tok"),
        "router_normalized": fields.flag("norm_topk_prob"),
    }
    dense = layer in fields.items("mlp_only_layers", [])
    if experts and (layer + 1) % fields.count("decoder_sparse_step") == 0 and not dense:
        own |= sparse
    return _rotated(fields) | _biases(fields) | own


def _mixtral(fields: Fields, layer: int) -> dict[str, Any]:
    own = {
        "num_experts": fields.integer("num_experts", fields.integer("num_local_experts")),
        "experts_per_token": fields.integer("num_experts_per_tok"),
    }
    return _windowed(fields, layer) | own


def _gemma(fields: Fields, layer: int) -> dict[str, Any]:
    # Early config.json files say "gelu" but the released models were trained with the tanh form.
    fields.refuse("gemma", hidden_activation=("gelu_pytorch_tanh",))
    common = _rotated(fields)
    own = {"norm_weight_offset": 1.0, "ffn": "geglu_tanh" if common["ffn"] == "geglu" else common["ffn"]}
    return common | _biases(fields) | own


def _gemma_later(fields: Fields, sliding: bool) -> dict[str, Any]:
    """Gemma 2 and 3: sandwich norms, own score scale, window on some layers."""
    window = fields.count("sliding_window", None)
    return _biases(fields) | {
        "norm_weight_offset": 1.0,
        "norm_position": "sandwich",
        "attn_scale": fields.positive("query_pre_attn_scalar") ** -0.5,
        "sliding_window": window if sliding else None,
    }


def _gemma2(fields: Fields, layer: int) -> dict[str, Any]:
    listed = fields.slides(layer)
    sliding = layer % 2 == 0 if listed is None else listed
    own = {"attn_soft_cap": fields.number("attn_logit_softcapping", None)}
    return _rotated(fields, "hidden_activation") | _gemma_later(fields, sliding) | own


def _gemma3(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, "hidden_activation")
    listed, pattern = fields.slides(layer), fields.count("sliding_window_pattern")
    sliding = bool((layer + 1) % pattern) if listed is None else listed
    rope = rope_fields(fields, head_dim=common["head_dim"], parameters=_gemma3_rope(fields, sliding))
    fields.refuse("gemma3", attn_logit_softcapping=())
    return common | rope | _gemma_later(fields, sliding) | {"qk_norm": "head"}


def _gemma3_rope(fields: Fields, sliding: bool) -> Fields:
    """One object for each kind of layer; in older files one that only layers without a window read."""
    bases = fields.number("rope_theta"), fields.number("rope_local_base_freq")
    kinds, defaults = fields.sub("rope_parameters"), {"rope_theta": bases[sliding]}
    if not kinds.values:
        none = Fields(fields.where, {}, defaults)
        return none if "rope_scaling" in fields and sliding else fields.sub("rope_scaling", defaults)
    if "rope_scaling" in fields:
        raise ConfigError(f"{fields.where}: rope_scaling stands beside rope_parameters; which one counts?")
    # A flat object is read by neither kind, so it is refused.
    kinds.asked |= {"sliding_attention", "full_attention"}
    return kinds.sub("sliding_attention" if sliding else "full_attention", defaults)


def _phi3(fields: Fields, layer: int) -> dict[str, Any]:
    # Phi-3 says "yarn" and "su" for what is longrope today.
    for name in ("rope_scaling", "rope_parameters"):
        fields.sub(name).refuse("phi3", type=("default",), rope_type=("default",))
    return _windowed(fields, layer)


def _olmo2(fields: Fields, layer: int) -> dict[str, Any]:
    return _rotated(fields) | _biases(fields) | {"norm_position": "inner_post", "qk_norm": "full"}


def _cohere(fields: Fields, layer: int) -> dict[str, Any]:
    """Parallel block under one LayerNorm without bias, neighbouring pairs rotated."""
    dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    fields.refuse("cohere", head_dim=(dim // heads,))
    return _biases(fields) | {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": fields.count("num_key_value_heads", heads),
        "max_position": fields.integer("max_position_embeddings"),
        "norm": "layernorm",
        "norm_bias": False,
        "norm_eps": fields.number("layer_norm_eps"),
        "parallel": "one_norm",
        "qk_norm": "per_head" if "use_qk_norm" in fields.defaults and fields.flag("use_qk_norm") else "none",
        "ffn": fields.gated_ffn("hidden_act"),
        "ffn_dim": fields.integer("intermediate_size"),
        "rope_layout": "interleaved",
        **rope_fields(fields, head_dim=dim // heads),
    }


def _cohere2(fields: Fields, layer: int) -> dict[str, Any]:
    """Windows and rotation on three of four layers, neither on the fourth."""
    listed, pattern = fields.slides(layer), fields.count("sliding_window_pattern")
    config, window = _cohere(fields, layer), fields.count("sliding_window", None)
    if bool((layer + 1) % pattern) if listed is None else listed:
        return config | {"sliding_window": window}
    return {k: v for k, v in config.items() if not k.startswith("rope")} | {"rope": False}


_OLMO2_NORMS = {"post_attention_layernorm": "attn_out_norm", "post_feedforward_layernorm": "ffn_out_norm"}
_PHI3_RULES = (
    Rule(source="self_attn.qkv_proj", targets=("attn.q", "attn.k", "attn.v"), take=qkv_rows),
    Rule(source="mlp.gate_up_proj", targets=("ffn.gate", "ffn.up"), take=halves),
    *rules({"self_attn.o_proj": "attn.out", "mlp.down_proj": "ffn.down"} | _PRE),
)
_COHERE_NORMS = {"input_layernorm": "attn_norm"}
_COHERE2_NEUTRAL = {
    "layer_switch": (4,),
    "order_of_interleaved_layers": ("local_attn_first",),
    "rotary_pct": (1.0,),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
}
_GEMMA_UNREAD = {
    "hidden_act": "hidden_activation counts",
    "sliding_window_size": "sliding_window counts",
}
_NO_UPPER_LAYERS = {"max_window_layers": "only Qwen's dense families count layers from it"}


def _row(name: str, config: Any, table: dict[str, str], **more: Any) -> Family:
    given = {"prefixes": _PREFIXES, "layers": _LAYERS, "ignored": _BUFFERS, "embedding": _TOKENS, **more}
    return Family(name=name, config=config, rules=rules(table), **given)


ROWS: tuple[Family, ...] = (
    _row(
        "llama",
        _llama,
        _ATTENTION | _MLP | _PRE,
        known=IRRELEVANT | {"activation": "hidden_act counts; Falcon 3 says both"},
    ),
    _row("mistral", _windowed, _ATTENTION | _MLP | _PRE),
    _row("qwen2", _qwen2, _ATTENTION | _MLP | _PRE),
    _row("qwen3", _qwen3, _ATTENTION | _QK_NORM | _MLP | _PRE),
    _row(
        "qwen3_moe",
        _qwen3_moe,
        _ATTENTION | _QK_NORM | _MLP | _PRE | _QWEN_EXPERTS,
        known=IRRELEVANT | _NO_UPPER_LAYERS,
    ),
    _row("mixtral", _mixtral, _ATTENTION | _PRE | _MIXTRAL_EXPERTS),
    _row("gemma", _gemma, _ATTENTION | _MLP | _PRE, embedding=_SCALED_TOKENS),
    _row(
        "gemma2",
        _gemma2,
        _ATTENTION | _MLP | _SANDWICH,
        embedding=_SCALED_TOKENS,
        known=IRRELEVANT | _GEMMA_UNREAD,
    ),
    _row(
        "gemma3_text",
        _gemma3,
        _ATTENTION | _QK_NORM | _MLP | _SANDWICH,
        embedding=_SCALED_TOKENS,
        known=IRRELEVANT | _GEMMA_UNREAD,
    ),
    _row("olmo2", _olmo2, _ATTENTION | _QK_NORM | _MLP | _OLMO2_NORMS),
    Family(
        name="phi3",
        prefixes=_PREFIXES,
        layers=_LAYERS,
        config=_phi3,
        rules=_PHI3_RULES,
        ignored=_BUFFERS,
        embedding=_TOKENS,
    ),
    _row("granite", _granite, _ATTENTION | _MLP | _PRE, embedding=_MULTIPLIED_TOKENS),
    _row("smollm3", _smollm3, _ATTENTION | _MLP | _PRE, known=IRRELEVANT | _NO_UPPER_LAYERS),
    _row("cohere", _cohere, _ATTENTION | _QK_NORM | _MLP | _COHERE_NORMS),
    _row("cohere2", _cohere2, _ATTENTION | _MLP | _COHERE_NORMS, known=IRRELEVANT | _COHERE2_NEUTRAL),
)
"""In the order `tblock list families` prints them."""
