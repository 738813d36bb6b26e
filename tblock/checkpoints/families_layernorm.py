"""Family rows: decoders with LayerNorm and a plain MLP (GPT-2, GPT-NeoX, Phi, Falcon), Hugging Face layout.

Sources: each family's config.json and modeling file in transformers; proven against those in tests/families.
"""

from typing import Any

from tblock.checkpoints.family import (
    ALL_BIASES,
    Embedding,
    Family,
    Rule,
    qkv_columns,
    qkv_per_group,
    rules,
    transposed,
)
from tblock.checkpoints.fields import Fields
from tblock.checkpoints.irrelevant import IRRELEVANT
from tblock.checkpoints.rope_fields import rope_fields, rope_parameters
from tblock.errors import ConfigError


def _gpt2(fields: Fields, layer: int) -> dict[str, Any]:
    fields.refuse("gpt2", add_cross_attention=(False,))
    dim, heads = fields.count("n_embd"), fields.count("n_head")
    scale = (dim / heads) ** -0.5 if fields.flag("scale_attn_weights") else 1.0
    if fields.flag("scale_attn_by_inverse_layer_idx"):
        scale /= layer + 1
    return {
        "dim": dim,
        "num_heads": heads,
        "max_position": fields.integer("n_positions"),
        "norm": "layernorm",
        "norm_eps": fields.number("layer_norm_epsilon"),
        "attn_scale": scale,
        "rope": False,
        "ffn": fields.activation("activation_function"),
        "ffn_dim": fields.integer("n_inner", 4 * dim),
        **ALL_BIASES,
    }


def _gpt_neox(fields: Fields, layer: int) -> dict[str, Any]:
    dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    attention_bias = fields.flag("attention_bias")
    # Own names for what stands beside the RoPE object; others' names are written too, and say the same.
    parameters = rope_parameters(fields, theta="rotary_emb_base", share="rotary_pct")
    theta, share = (parameters.defaults[name] for name in ("rope_theta", "partial_rotary_factor"))
    fields.refuse("gpt_neox", rope_theta=(theta,), partial_rotary_factor=(share,))
    return {
        "dim": dim,
        "num_heads": heads,
        "max_position": fields.integer("max_position_embeddings"),
        "norm": "layernorm",
        "norm_eps": fields.number("layer_norm_eps"),
        "parallel": "two_norms" if fields.flag("use_parallel_residual") else "none",
        "ffn": fields.activation("hidden_act"),
        "ffn_dim": fields.integer("intermediate_size"),
        **ALL_BIASES,
        **{f"{name}_bias": attention_bias for name in ("q", "k", "v", "out")},
        **rope_fields(fields, head_dim=dim // heads, parameters=parameters),
    }


def _phi(fields: Fields, layer: int) -> dict[str, Any]:
    dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    return {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "max_position": fields.integer("max_position_embeddings"),
        "norm": "layernorm",
        "norm_eps": fields.number("layer_norm_eps"),
        "parallel": "one_norm",
        "qk_norm": "head" if fields.flag("qk_layernorm") else "none",
        "ffn": fields.activation("hidden_act"),
        "ffn_dim": fields.integer("intermediate_size"),
        **ALL_BIASES,
        **rope_fields(fields, head_dim=dim // heads),
    }


def _falcon(fields: Fields, layer: int) -> dict[str, Any]:
    if fields.flag("alibi"):
        raise ConfigError(f"{fields.where}: alibi=True: falcon is supported with rotary positions only")
    dim, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    new, parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn")
    if new and not parallel:
        raise ConfigError(f"{fields.where}: parallel_attn=False: needs new_decoder_architecture=False")
    norms = fields.integer("num_ln_in_parallel_attn", 2 if new else 1)
    shared, kv_heads = fields.flag("multi_query"), fields.integer("num_kv_heads", heads)
    bias = fields.flag("bias")
    return {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": 1 if shared and not new else kv_heads,
        "max_position": fields.integer("max_position_embeddings"),
        "norm": "layernorm",
        "norm_eps": fields.number("layer_norm_epsilon"),
        "parallel": "none" if not parallel else "two_norms" if new and norms == 2 else "one_norm",
        "ffn": fields.activation("activation"),
        "ffn_dim": fields.integer("ffn_hidden_size", 4 * dim),
        **dict.fromkeys(ALL_BIASES, bias),
        **rope_fields(fields, head_dim=dim // heads),
    }


_GPT2_RULES = (
    Rule(source="attn.c_attn", targets=("attn.q", "attn.k", "attn.v"), take=qkv_columns),
    *rules({"attn.c_proj": "attn.out", "mlp.c_fc": "ffn.up", "mlp.c_proj": "ffn.down"}, transposed),
    *rules({"ln_1": "attn_norm", "ln_2": "ffn_norm"}),
)
_MLP = {"mlp.dense_h_to_4h": "ffn.up", "mlp.dense_4h_to_h": "ffn.down"}
_NEOX_RULES = (
    Rule(source="attention.query_key_value", targets=("attn.q", "attn.k", "attn.v"), take=qkv_per_group),
    *rules(
        {
            "attention.dense": "attn.out",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
        }
    ),
    *rules(_MLP),
)
_FALCON_RULES = (
    Rule(source="self_attention.query_key_value", targets=("attn.q", "attn.k", "attn.v"), take=qkv_per_group),
    *rules(
        {
            "self_attention.dense": "attn.out",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
        }
    ),
    *rules({"ln_attn": "attn_norm", "ln_mlp": "ffn_norm"}),
    *rules(_MLP),
)
_PHI_RULES = rules(
    {
        "self_attn.q_proj": "attn.q",
        "self_attn.k_proj": "attn.k",
        "self_attn.v_proj": "attn.v",
        "self_attn.dense": "attn.out",
        "self_attn.q_layernorm": "attn.q_norm",
        "self_attn.k_layernorm": "attn.k_norm",
        "mlp.fc1": "ffn.up",
        "mlp.fc2": "ffn.down",
        "input_layernorm": "attn_norm",
    }
)

ROWS: tuple[Family, ...] = (
    Family(
        name="phi",
        prefixes=("model.", ""),
        layers=("layers",),
        config=_phi,
        rules=_PHI_RULES,
        ignored=(r"self_attn\.rotary_emb\.inv_freq",),
        embedding=Embedding(tokens="embed_tokens.weight"),
    ),
    Family(
        name="gpt2",
        prefixes=("transformer.", ""),
        layers=("h",),
        config=_gpt2,
        rules=_GPT2_RULES,
        ignored=(r"attn\.bias", r"attn\.masked_bias"),
        embedding=Embedding(tokens="wte.weight", positions="wpe.weight"),
        depth="n_layer",
        known=IRRELEVANT | {"n_ctx": "n_positions counts"},
    ),
    Family(
        name="gpt_neox",
        prefixes=("gpt_neox.", ""),
        layers=("layers",),
        config=_gpt_neox,
        rules=_NEOX_RULES,
        ignored=(r"attention\.bias", r"attention\.masked_bias", r"attention\.rotary_emb\.inv_freq"),
        embedding=Embedding(tokens="embed_in.weight"),
    ),
    Family(
        name="falcon",
        prefixes=("transformer.", ""),
        layers=("h",),
        config=_falcon,
        rules=_FALCON_RULES,
        ignored=(r"self_attention\.rotary_emb\.inv_freq",),
        embedding=Embedding(tokens="word_embeddings.weight"),
        known=IRRELEVANT | {"ff_factor": "ffn_hidden_size counts"},
    ),
)
"""In the order `tblock list families` prints them."""
