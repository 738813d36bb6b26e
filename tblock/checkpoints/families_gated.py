"""Family rows: decoders with RMSNorm and a gated FFN (Llama and its descendants), Hugging Face layout.

Sources: each family's config.json and modeling file in transformers; proven against those in tests/families.
"""

from typing import Any

from tblock.checkpoints.family import Embedding, Family, Rule, halves, qkv_rows, rules
from tblock.checkpoints.fields import Fields
from tblock.checkpoints.rope_fields import rope_fields

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


def _decoder(fields: Fields, *, eps: float, head_dim: int | None = None, ffn: str = "silu") -> dict[str, Any]:
    """What every row here has in common; `head_dim` None: D / H unless the settings say otherwise."""
    dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", head_dim or dim // heads)
    return {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": fields.count("num_key_value_heads", heads),
        "head_dim": head_dim,
        "max_position": fields.integer("max_position_embeddings"),
        "norm_eps": fields.number("rms_norm_eps", eps),
        "ffn": fields.gated_ffn("hidden_act", ffn),
        "ffn_dim": fields.integer("intermediate_size"),
    }


def _biases(fields: Fields) -> dict[str, bool]:
    given = fields.flag("attention_bias", False)
    return {f"{name}_bias": given for name in ("q", "k", "v", "out")}


def _rope(
    fields: Fields, common: dict[str, Any], *, base: float = 10000.0, layer_type: str | None = None
) -> dict:
    return rope_fields(fields, head_dim=common["head_dim"], base=base, layer_type=layer_type)


def _llama(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, eps=1e-6)
    return common | _rope(fields, common) | _biases(fields) | {"ffn_bias": fields.flag("mlp_bias", False)}


def _mistral(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, eps=1e-6)
    fields.refuse("mistral", layer_types=())
    return common | _rope(fields, common) | {"sliding_window": fields.window("sliding_window", 4096)}


def _qwen_window(fields: Fields, layer: int) -> int | None:
    """Qwen: off unless asked for, then on the upper layers or those the list names."""
    listed = fields.slides(layer)
    if not fields.flag("use_sliding_window", False):
        return None
    sliding = layer >= fields.integer("max_window_layers", 28) if listed is None else listed
    return fields.window("sliding_window", 4096) if sliding else None


def _qwen2(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, eps=1e-6)
    biases = {"q_bias": True, "k_bias": True, "v_bias": True}
    return common | _rope(fields, common) | biases | {"sliding_window": _qwen_window(fields, layer)}


def _qwen3(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, eps=1e-6, head_dim=128)
    own = {"qk_norm": "head", "sliding_window": _qwen_window(fields, layer)}
    return common | _rope(fields, common) | _biases(fields) | own


def _qwen3_moe(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, eps=1e-6)
    window = fields.window("sliding_window", 4096) if fields.flag("use_sliding_window", False) else None
    own: dict[str, Any] = {"qk_norm": "head", "sliding_window": window}
    experts = fields.integer("num_experts", fields.integer("num_local_experts", 128))
    dense = layer in fields.items("mlp_only_layers", [])
    if experts and not dense and (layer + 1) % fields.count("decoder_sparse_step", 1) == 0:
        own |= {
            "ffn_dim": fields.integer("moe_intermediate_size"),
            "num_experts": experts,
            "experts_per_token": fields.integer("num_experts_per_tok"),
            "router_normalized": fields.flag("norm_topk_prob", False),
        }
    return common | _rope(fields, common) | _biases(fields) | own


def _mixtral(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, eps=1e-5)
    own = {
        "sliding_window": fields.window("sliding_window", None),
        "num_experts": fields.integer("num_local_experts", fields.integer("num_experts", 8)),
        "experts_per_token": fields.integer("num_experts_per_tok", 2),
    }
    return common | _rope(fields, common, base=1e6) | own


def _gemma(fields: Fields, layer: int) -> dict[str, Any]:
    fields.refuse("gemma", use_bidirectional_attention=(False,))
    common = _decoder(fields, eps=1e-6, head_dim=256, ffn="gelu_pytorch_tanh")
    # Early config.json files say "gelu" but the released models were trained with the tanh form.
    own = {"norm_weight_offset": 1.0, "ffn": "geglu_tanh" if common["ffn"] == "geglu" else common["ffn"]}
    return common | _rope(fields, common) | _biases(fields) | own


def _gemma_later(fields: Fields, sliding: bool) -> dict[str, Any]:
    """Gemma 2 and 3: sandwich norms, own score scale, window on some layers."""
    return {
        "norm_weight_offset": 1.0,
        "norm_position": "sandwich",
        "ffn": fields.gated_ffn("hidden_activation", "gelu_pytorch_tanh"),
        "attn_scale": fields.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        "sliding_window": fields.window("sliding_window", 4096) if sliding else None,
    }


def _gemma2(fields: Fields, layer: int) -> dict[str, Any]:
    fields.refuse("gemma2", use_bidirectional_attention=(False,))
    common = _decoder(fields, eps=1e-6, head_dim=256)
    listed = fields.slides(layer)
    sliding = layer % 2 == 0 if listed is None else listed
    own = {"attn_soft_cap": fields.nullable("attn_logit_softcapping", 50.0)}
    return common | _rope(fields, common) | _biases(fields) | _gemma_later(fields, sliding) | own


def _gemma3(fields: Fields, layer: int) -> dict[str, Any]:
    fields.refuse("gemma3", use_bidirectional_attention=(False,), attn_logit_softcapping=())
    common = _decoder(fields, eps=1e-6, head_dim=256)
    listed, pattern = fields.slides(layer), fields.count("sliding_window_pattern", 6)
    sliding = bool((layer + 1) % pattern) if listed is None else listed
    if "rope_parameters" in fields:
        kind = "sliding_attention" if sliding else "full_attention"
        rope = _rope(fields, common, base=1e4 if sliding else 1e6, layer_type=kind)
    elif sliding:
        rope = {"rope_base": fields.number("rope_local_base_freq", 1e4)}
    else:
        rope = _rope(fields, common, base=1e6)
    own = {"qk_norm": "head", "max_position": fields.integer("max_position_embeddings", 131072)}
    return common | rope | _biases(fields) | _gemma_later(fields, sliding) | own


def _phi3(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, eps=1e-5)
    # Phi-3 says "yarn" and "su" for what is longrope today.
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.sub(name)
        scaling.refuse("phi3", type=("default",), rope_type=("default",))
    return common | _rope(fields, common) | {"sliding_window": fields.window("sliding_window", None)}


def _olmo2(fields: Fields, layer: int) -> dict[str, Any]:
    common = _decoder(fields, eps=1e-5)
    return (
        common | _rope(fields, common) | _biases(fields) | {"norm_position": "inner_post", "qk_norm": "full"}
    )


_OLMO2_NORMS = {"post_attention_layernorm": "attn_out_norm", "post_feedforward_layernorm": "ffn_out_norm"}
_PHI3_RULES = (
    Rule(source="self_attn.qkv_proj", targets=("attn.q", "attn.k", "attn.v"), take=qkv_rows),
    Rule(source="mlp.gate_up_proj", targets=("ffn.gate", "ffn.up"), take=halves),
    *rules({"self_attn.o_proj": "attn.out", "mlp.down_proj": "ffn.down"} | _PRE),
)
_GEMMA3_PREFIXES = ("model.language_model.", "language_model.model.", "model.", "")


def _row(name: str, config: Any, table: dict[str, str], **more: Any) -> Family:
    given = {"prefixes": _PREFIXES, "layers": _LAYERS, "ignored": _BUFFERS, "embedding": _TOKENS, **more}
    return Family(name=name, config=config, rules=rules(table), **given)


ROWS: tuple[Family, ...] = (
    _row("llama", _llama, _ATTENTION | _MLP | _PRE),
    _row("mistral", _mistral, _ATTENTION | _MLP | _PRE),
    _row("qwen2", _qwen2, _ATTENTION | _MLP | _PRE),
    _row("qwen3", _qwen3, _ATTENTION | _QK_NORM | _MLP | _PRE),
    _row("qwen3_moe", _qwen3_moe, _ATTENTION | _QK_NORM | _MLP | _PRE | _QWEN_EXPERTS),
    _row("mixtral", _mixtral, _ATTENTION | _PRE | _MIXTRAL_EXPERTS),
    _row("gemma", _gemma, _ATTENTION | _MLP | _PRE, embedding=_SCALED_TOKENS),
    _row("gemma2", _gemma2, _ATTENTION | _MLP | _SANDWICH, embedding=_SCALED_TOKENS),
    _row("gemma3_text", _gemma3, _ATTENTION | _QK_NORM | _MLP | _SANDWICH, embedding=_SCALED_TOKENS),
    _row(
        "gemma3",
        _gemma3,
        _ATTENTION | _QK_NORM | _MLP | _SANDWICH,
        prefixes=_GEMMA3_PREFIXES,
        embedding=_SCALED_TOKENS,
        section="text_config",
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
)
"""In the order `tblock list families` prints them."""
