"""Family rows: encoders (BERT, RoBERTa, DistilBERT, ViT, Whisper's encoder), Hugging Face layout.

Sources: each family's config.json and modeling file in transformers; proven against those in tests/families.
"""

from typing import Any

from tblock.checkpoints.family import ALL_BIASES, Embedding, Family, rules
from tblock.checkpoints.fields import Fields
from tblock.checkpoints.irrelevant import IRRELEVANT

_ENCODER = {"norm": "layernorm", "causal": False, "rope": False}


def _bert(fields: Fields, layer: int) -> dict[str, Any]:
    fields.refuse(
        "bert", is_decoder=(False,), add_cross_attention=(False,), position_embedding_type=("absolute",)
    )
    return {
        "dim": fields.count("hidden_size"),
        "num_heads": fields.count("num_attention_heads"),
        "max_position": fields.integer("max_position_embeddings"),
        "norm_position": "post",
        "norm_eps": fields.number("layer_norm_eps"),
        "ffn": fields.activation("hidden_act"),
        "ffn_dim": fields.integer("intermediate_size"),
        **_ENCODER,
        **ALL_BIASES,
    }


def _first_position(fields: Fields) -> int:
    """RoBERTa counts positions from the padding token's id plus one; its table holds the rows below too."""
    return fields.integer("pad_token_id") + 1


def _roberta(fields: Fields, layer: int) -> dict[str, Any]:
    config = _bert(fields, layer)
    return config | {"max_position": config["max_position"] - _first_position(fields)}


def _distilbert(fields: Fields, layer: int) -> dict[str, Any]:
    return {
        "dim": fields.integer("dim"),
        "num_heads": fields.count("n_heads"),
        "max_position": fields.integer("max_position_embeddings"),
        "norm_position": "post",
        "norm_eps": 1e-12,
        "ffn": fields.activation("activation"),
        "ffn_dim": fields.integer("hidden_dim"),
        **_ENCODER,
        **ALL_BIASES,
    }


def _vit(fields: Fields, layer: int) -> dict[str, Any]:
    qkv_bias = fields.flag("qkv_bias")
    return {
        "dim": fields.count("hidden_size"),
        "num_heads": fields.count("num_attention_heads"),
        "norm_eps": fields.number("layer_norm_eps"),
        "ffn": fields.activation("hidden_act"),
        "ffn_dim": fields.integer("intermediate_size"),
        **_ENCODER,
        **ALL_BIASES,
        **{f"{name}_bias": qkv_bias for name in ("q", "k", "v")},
    }


def _whisper(fields: Fields, layer: int) -> dict[str, Any]:
    return {
        "dim": fields.integer("d_model"),
        "num_heads": fields.count("encoder_attention_heads"),
        "max_position": fields.integer("max_source_positions"),
        "norm_eps": 1e-5,
        "ffn": fields.activation("activation_function"),
        "ffn_dim": fields.integer("encoder_ffn_dim"),
        **_ENCODER,
        **ALL_BIASES,
        "k_bias": False,
    }


_BERT_RULES = rules(
    {
        "attention.self.query": "attn.q",
        "attention.self.key": "attn.k",
        "attention.self.value": "attn.v",
        "attention.output.dense": "attn.out",
        "attention.output.LayerNorm": "attn_norm",
        "intermediate.dense": "ffn.up",
        "output.dense": "ffn.down",
        "output.LayerNorm": "ffn_norm",
    }
)
_DISTILBERT_RULES = rules(
    {
        "attention.q_lin": "attn.q",
        "attention.k_lin": "attn.k",
        "attention.v_lin": "attn.v",
        "attention.out_lin": "attn.out",
        "sa_layer_norm": "attn_norm",
        "ffn.lin1": "ffn.up",
        "ffn.lin2": "ffn.down",
        "output_layer_norm": "ffn_norm",
    }
)
_VIT_RULES = rules(
    {
        "attention.attention.query": "attn.q",
        "attention.attention.key": "attn.k",
        "attention.attention.value": "attn.v",
        "attention.output.dense": "attn.out",
        "intermediate.dense": "ffn.up",
        "output.dense": "ffn.down",
        "attention.q_proj": "attn.q",
        "attention.k_proj": "attn.k",
        "attention.v_proj": "attn.v",
        "attention.o_proj": "attn.out",
        "mlp.fc1": "ffn.up",
        "mlp.fc2": "ffn.down",
        "layernorm_before": "attn_norm",
        "layernorm_after": "ffn_norm",
    }
)
_WHISPER_RULES = rules(
    {
        "self_attn.q_proj": "attn.q",
        "self_attn.k_proj": "attn.k",
        "self_attn.v_proj": "attn.v",
        "self_attn.out_proj": "attn.out",
        "self_attn_layer_norm": "attn_norm",
        "fc1": "ffn.up",
        "fc2": "ffn.down",
        "final_layer_norm": "ffn_norm",
    }
)


def _embedding(position_offset: Any, token_types: str | None) -> Embedding:
    return Embedding(
        tokens="embeddings.word_embeddings.weight",
        positions="embeddings.position_embeddings.weight",
        position_offset=position_offset,
        token_types=token_types,
        norm="embeddings.LayerNorm",
    )


_SEGMENTS = "embeddings.token_type_embeddings.weight"

ROWS: tuple[Family, ...] = (
    Family(
        name="bert",
        prefixes=("bert.", ""),
        layers=("encoder.layer",),
        config=_bert,
        rules=_BERT_RULES,
        embedding=_embedding(lambda fields: 0, _SEGMENTS),
    ),
    Family(
        name="roberta",
        prefixes=("roberta.", ""),
        layers=("encoder.layer",),
        config=_roberta,
        rules=_BERT_RULES,
        embedding=_embedding(_first_position, _SEGMENTS),
    ),
    Family(
        name="distilbert",
        prefixes=("distilbert.", ""),
        layers=("transformer.layer",),
        config=_distilbert,
        rules=_DISTILBERT_RULES,
        embedding=_embedding(lambda fields: 0, None),
        depth="n_layers",
    ),
    Family(
        name="vit", prefixes=("vit.", ""), layers=("encoder.layer", "layers"), config=_vit, rules=_VIT_RULES
    ),
    Family(
        name="whisper",
        prefixes=("model.", ""),
        layers=("encoder.layers", "layers"),
        config=_whisper,
        rules=_WHISPER_RULES,
        depth="encoder_layers",
        known=IRRELEVANT
        | {"is_encoder_decoder": "the encoder is read", "num_hidden_layers": "encoder_layers counts"},
    ),
)
"""In the order `tblock list families` prints them. ViT and Whisper take patches and sound: no embedding."""
