"""The families test table: one small random model of each family, built and saved by transformers.

Sizes are odd where the family allows it, K < H, biases are on where the family has them, windows are shorter
than the sequences. Adding a family to the support matrix is adding a row here.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

VOCAB = 97

_TOKENS = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GATED = {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 77}
_GATED |= {"num_hidden_layers": 2, "max_position_embeddings": 64, **_TOKENS}
_OWN_HEAD = {**_GATED, "head_dim": 14}
_BERT = {"hidden_size": 45, "num_attention_heads": 3, "intermediate_size": 77, "num_hidden_layers": 2}
_BERT |= {"max_position_embeddings": 64, **_TOKENS}
_MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 33}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_LLAMA3 |= {"original_max_position_embeddings": 32}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_TYPES = {"layer_types": ["sliding_attention", "full_attention"]}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model.

    Attributes:
        id: family, and what is special where a family has several rows.
        family: as in the support matrix.
        model_type: for transformers' AutoConfig; "" for torch's own layer.
        settings: of its config.
        layers: those that are compared.
        float64: the family's code has no float32 cast on the way, so float64 has to agree to 1e-12.
    """

    id: str
    family: str
    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] = (0, 1)
    float64: bool = False


def _case(name: str, settings: dict[str, Any], *, model_type: str = "", float64: bool = False) -> Case:
    family = model_type or name.partition("-")[0]
    return Case(id=name, family=family, model_type=family, settings=settings, float64=float64)


CASES: tuple[Case, ...] = (
    _case("llama", {**_GATED, "attention_bias": True, "mlp_bias": True}),
    _case("llama-llama3rope", {**_OWN_HEAD, "rope_parameters": _LLAMA3}),
    _case("llama-yarn", {**_GATED, "rope_parameters": _YARN}),
    _case(
        "llama-linear",
        {**_GATED, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}},
    ),
    _case("mistral", {**_OWN_HEAD, "sliding_window": 5}),
    _case("mistral-nowindow", {**_OWN_HEAD, "sliding_window": None}),
    _case("qwen2", {**_GATED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    _case("qwen3", {**_OWN_HEAD, "attention_bias": True}),
    _case(
        "qwen3-window", {**_OWN_HEAD, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    _case("qwen3_moe", {**_OWN_HEAD, **_MOE, "norm_topk_prob": True, "attention_bias": True}),
    _case("qwen3_moe-mixed", {**_OWN_HEAD, **_MOE, "norm_topk_prob": False, "decoder_sparse_step": 2}),
    _case("gemma", {**_OWN_HEAD, "attention_bias": True}),
    _case(
        "gemma2",
        {**_OWN_HEAD, "sliding_window": 5, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 20},
    ),
    _case(
        "gemma3",
        {
            **_OWN_HEAD,
            **_TYPES,
            "sliding_window": 5,
            "query_pre_attn_scalar": 20,
            "rope_parameters": _GEMMA3_ROPE,
        },
        model_type="gemma3_text",
    ),
    _case(
        "granite",
        {**_GATED, "attention_bias": True, "attention_multiplier": 0.2, "residual_multiplier": 0.6}
        | {"embedding_multiplier": 12.0, "logits_scaling": 3.0},
    ),
    _case("smollm3", {**_GATED, "no_rope_layers": [1, 0], "attention_bias": True, "mlp_bias": True}),
    _case(
        "smollm3-window",
        {**_GATED, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5},
    ),
    _case("cohere", {**_GATED, "attention_bias": True, "use_qk_norm": True}),
    _case("cohere-plain", _GATED),
    _case("cohere2", {**_GATED, **_TYPES, "sliding_window": 5}),
    _case(
        "phi",
        {
            **_GATED,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4},
        },
    ),
    _case("phi-qknorm", {**_GATED, "qk_layernorm": True, "hidden_act": "gelu", "partial_rotary_factor": 0.6}),
    _case("phi3", {**_GATED, "sliding_window": 5}),
    _case("olmo2", {**_GATED, "attention_bias": True}),
    _case(
        "gpt2",
        {"n_embd": 45, "n_head": 3, "n_layer": 2, "n_inner": 77, "n_positions": 64, **_TOKENS},
        float64=True,
    ),
    _case(
        "gpt2-layerscale",
        {
            "n_embd": 45,
            "n_head": 3,
            "n_layer": 2,
            "n_positions": 64,
            "scale_attn_by_inverse_layer_idx": True,
            **_TOKENS,
        },
        float64=True,
    ),
    _case("gpt_neox", {**_BERT, "hidden_size": 60, "num_attention_heads": 6, "hidden_act": "gelu"}),
    _case(
        "gpt_neox-serial",
        {**_BERT, "hidden_size": 60, "num_attention_heads": 6, "use_parallel_residual": False},
    ),
    _case(
        "falcon",
        {
            "hidden_size": 60,
            "num_attention_heads": 6,
            "num_kv_heads": 2,
            "num_hidden_layers": 2,
            "ffn_hidden_size": 77,
        }
        | {"new_decoder_architecture": True, "bias": True, "max_position_embeddings": 64, **_TOKENS},
    ),
    _case(
        "falcon-multiquery",
        {
            "hidden_size": 60,
            "num_attention_heads": 6,
            "num_hidden_layers": 2,
            "max_position_embeddings": 64,
            **_TOKENS,
        },
    ),
    _case(
        "falcon-serial",
        {
            "hidden_size": 60,
            "num_attention_heads": 6,
            "num_hidden_layers": 2,
            "multi_query": False,
            "parallel_attn": False,
        }
        | {"max_position_embeddings": 64, **_TOKENS},
    ),
    _case("mixtral", {**_OWN_HEAD, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 5}),
    _case("bert", _BERT, float64=True),
    _case("roberta", {**_BERT, "max_position_embeddings": 66, "pad_token_id": 1}, float64=True),
    _case(
        "distilbert",
        {"dim": 45, "n_heads": 3, "hidden_dim": 77, "n_layers": 2, "max_position_embeddings": 64, **_TOKENS},
        float64=True,
    ),
    _case(
        "vit",
        {
            "hidden_size": 45,
            "num_attention_heads": 3,
            "intermediate_size": 77,
            "num_hidden_layers": 2,
            "image_size": 8,
        }
        | {"patch_size": 4},
        float64=True,
    ),
    _case(
        "whisper",
        {
            "d_model": 46,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 77,
            "encoder_layers": 2,
            "decoder_layers": 1,
        }
        | {
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 20,
            "num_mel_bins": 8,
            "max_source_positions": 64,
            **_TOKENS,
        },
        float64=True,
    ),
)


def build_model(case: Case, seed: int = 0) -> nn.Module:
    """The family's own base model with random weights in float32, norms and biases drawn too."""
    import transformers

    config = transformers.AutoConfig.for_model(case.model_type, **case.settings)
    model = transformers.AutoModel.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    model.set_experts_implementation("eager")
    randomize(model, seed)
    return model


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> None:
    """Draw every parameter anew so that none is neutral: outputs of order 1, scores of order a few."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            stretch = (
                1.5
                if any(part in name for part in ("q_proj", "k_proj", "query", "key", "qkv", "c_attn"))
                else 1.0
            )
            fan_in = parameter.shape[0] if "c_" in name else parameter.shape[-1]
            parameter.copy_(noise * stretch / fan_in**0.5)
        elif name.endswith("weight"):
            # Norm weights: around their own neutral value, which is 0 in the Gemma family.
            parameter.copy_(parameter.round() + 0.3 * noise)
        else:
            parameter.copy_(0.3 * noise)


def save_model(case: Case, folder: Path, seed: int = 0) -> nn.Module:
    """Build a model and save it as a Hugging Face folder; returns the model."""
    model = build_model(case, seed)
    model.save_pretrained(folder)
    return model
