"""Random valid configs: any family, sizes and options drawn, for counting false alarms of the probe."""

from typing import Any

import numpy as np

from tests.families.family_cases import Case

_TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_hidden_layers": 2}
_GATED_ACTS = ("silu", "gelu", "gelu_pytorch_tanh")
_PLAIN_ACTS = ("gelu", "gelu_new", "relu")


def random_case(seed: int) -> Case:
    """One model config; the same seed gives the same one."""
    rng = np.random.default_rng(seed)
    family = str(rng.choice(sorted(_DRAWS)))
    model_type, settings = _DRAWS[family](rng)
    return Case(id=f"random-{seed}-{family}", family=family, model_type=model_type, settings=settings)


def _pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _heads(rng: np.random.Generator) -> tuple[int, int, int]:
    """H, K, E."""
    kv_heads = int(rng.integers(1, 4))
    return kv_heads * int(rng.integers(1, 4)), kv_heads, 2 * int(rng.integers(3, 10))


def _rope(rng: np.random.Generator, scalings: bool = True) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(10 ** rng.uniform(3, 6))}
    kind = _pick(rng, "default", "linear", "llama3", "yarn") if scalings else "default"
    if kind != "default":
        rope |= {"rope_type": kind, "factor": float(rng.uniform(1.5, 16))}
    if kind in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = int(rng.integers(16, 64))
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": float(rng.uniform(2, 6))}
    return rope


def _gated(
    rng: np.random.Generator, *, own_head: bool, scalings: bool = True, bias: bool = True
) -> dict[str, Any]:
    heads, kv_heads, head_dim = _heads(rng)
    settings = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * head_dim,
        "intermediate_size": int(rng.integers(17, 120)),
        "rms_norm_eps": _pick(rng, 1e-5, 1e-6),
        "hidden_act": _pick(rng, *_GATED_ACTS),
        "max_position_embeddings": 64,
        "rope_parameters": _rope(rng, scalings),
        **_TOKENS,
    }
    if own_head:
        settings["head_dim"] = 2 * int(rng.integers(3, 10))
    if bias:
        settings["attention_bias"] = _pick(rng, True, False)
    return settings


def _window(rng: np.random.Generator) -> dict[str, Any]:
    return {"sliding_window": _pick(rng, None, int(rng.integers(2, 30)))}


def _layered_window(rng: np.random.Generator) -> dict[str, Any]:
    return {"use_sliding_window": _pick(rng, True, False), "sliding_window": int(rng.integers(2, 30))} | {
        "max_window_layers": int(rng.integers(0, 3))
    }


def _llama(rng: np.random.Generator) -> tuple[str, dict]:
    return "llama", _gated(rng, own_head=_pick(rng, True, False)) | {"mlp_bias": _pick(rng, True, False)}


def _mistral(rng: np.random.Generator) -> tuple[str, dict]:
    return "mistral", _gated(rng, own_head=True, bias=False) | _window(rng)


def _qwen2(rng: np.random.Generator) -> tuple[str, dict]:
    return "qwen2", _gated(rng, own_head=False, bias=False) | _layered_window(rng)


def _qwen3(rng: np.random.Generator) -> tuple[str, dict]:
    return "qwen3", _gated(rng, own_head=True) | _layered_window(rng)


def _experts(rng: np.random.Generator) -> tuple[int, int]:
    count = int(rng.integers(2, 7))
    return count, int(rng.integers(1, count + 1))


def _qwen3_moe(rng: np.random.Generator) -> tuple[str, dict]:
    count, chosen = _experts(rng)
    own = {"num_experts": count, "num_experts_per_tok": chosen, "norm_topk_prob": _pick(rng, True, False)}
    own |= {"moe_intermediate_size": int(rng.integers(9, 50)), "decoder_sparse_step": _pick(rng, 1, 2)}
    return "qwen3_moe", _gated(rng, own_head=True) | own


def _mixtral(rng: np.random.Generator) -> tuple[str, dict]:
    count, chosen = _experts(rng)
    own = {"num_local_experts": count, "num_experts_per_tok": chosen}
    return "mixtral", _gated(rng, own_head=True, bias=False) | own | _window(rng)


def _gemma(rng: np.random.Generator) -> tuple[str, dict]:
    return "gemma", _gated(rng, own_head=True) | {"hidden_act": "gelu_pytorch_tanh"}


def _later_gemma(rng: np.random.Generator) -> dict[str, Any]:
    own = {"query_pre_attn_scalar": int(rng.integers(6, 40)), "sliding_window": int(rng.integers(2, 30))}
    return own | {"hidden_activation": _pick(rng, *_GATED_ACTS)}


def _gemma2(rng: np.random.Generator) -> tuple[str, dict]:
    cap = {"attn_logit_softcapping": _pick(rng, None, float(rng.uniform(2, 50)))}
    return "gemma2", _gated(rng, own_head=True) | _later_gemma(rng) | cap


def _gemma3(rng: np.random.Generator) -> tuple[str, dict]:
    settings = _gated(rng, own_head=True) | _later_gemma(rng)
    kinds = ("full_attention", "sliding_attention")
    settings["rope_parameters"] = {kind: _rope(rng) for kind in kinds}
    return "gemma3_text", settings | {"layer_types": [_pick(rng, *kinds), _pick(rng, *kinds)]}


def _granite(rng: np.random.Generator) -> tuple[str, dict]:
    scales = {name: float(rng.uniform(0.1, 2)) for name in ("attention_multiplier", "residual_multiplier")}
    return "granite", _gated(rng, own_head=False) | {"mlp_bias": _pick(rng, True, False), **scales}


def _smollm3(rng: np.random.Generator) -> tuple[str, dict]:
    own = {"no_rope_layer_interval": int(rng.integers(1, 4)), "use_sliding_window": _pick(rng, True, False)}
    return "smollm3", _gated(rng, own_head=False) | own | _window(rng)


def _cohere(rng: np.random.Generator) -> tuple[str, dict]:
    settings = _gated(rng, own_head=False, scalings=False)
    del settings["rms_norm_eps"]
    return "cohere", settings | {"use_qk_norm": _pick(rng, True, False)}


def _cohere2(rng: np.random.Generator) -> tuple[str, dict]:
    settings = _cohere(rng)[1]
    del settings["use_qk_norm"]
    kinds = ("full_attention", "sliding_attention")
    own = {
        "layer_types": [_pick(rng, *kinds), _pick(rng, *kinds)],
        "sliding_window": int(rng.integers(2, 30)),
    }
    return "cohere2", settings | own


def _phi3(rng: np.random.Generator) -> tuple[str, dict]:
    return "phi3", _gated(rng, own_head=False, scalings=False, bias=False) | _window(rng)


def _olmo2(rng: np.random.Generator) -> tuple[str, dict]:
    return "olmo2", _gated(rng, own_head=False)


def _phi(rng: np.random.Generator) -> tuple[str, dict]:
    settings = _gated(rng, own_head=False, bias=False) | {"hidden_act": _pick(rng, *_PLAIN_ACTS)}
    del settings["rms_norm_eps"]
    head_dim = settings["hidden_size"] // settings["num_attention_heads"]
    rotated = 2 * int(rng.integers(1, head_dim // 2 + 1))
    settings["rope_parameters"] = _rope(rng, False) | {"partial_rotary_factor": (rotated + 0.5) / head_dim}
    if rotated == head_dim:
        settings["rope_parameters"]["partial_rotary_factor"] = 1.0
    return "phi", settings | {"qk_layernorm": _pick(rng, True, False)}


def _gpt_neox(rng: np.random.Generator) -> tuple[str, dict]:
    _, settings = _phi(rng)
    del settings["num_key_value_heads"], settings["qk_layernorm"]
    own = {"use_parallel_residual": _pick(rng, True, False), "attention_bias": _pick(rng, True, False)}
    return "gpt_neox", settings | own


def _falcon(rng: np.random.Generator) -> tuple[str, dict]:
    heads, kv_heads, head_dim = _heads(rng)
    new = _pick(rng, True, False)
    return "falcon", {
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_kv_heads": kv_heads if new else None,
        "new_decoder_architecture": new,
        "num_ln_in_parallel_attn": _pick(rng, 1, 2) if new else None,
        "multi_query": _pick(rng, True, False),
        "parallel_attn": True if new else _pick(rng, True, False),
        "bias": _pick(rng, True, False),
        "activation": _pick(rng, *_PLAIN_ACTS),
        "ffn_hidden_size": int(rng.integers(17, 120)),
        "rope_parameters": _rope(rng, False),
        **_TOKENS,
    }


def _gpt2(rng: np.random.Generator) -> tuple[str, dict]:
    heads, _, head_dim = _heads(rng)
    own = {
        "n_embd": heads * (head_dim - 1),
        "n_head": heads,
        "n_layer": 2,
        "n_inner": int(rng.integers(17, 120)),
    }
    scale = {"scale_attn_by_inverse_layer_idx": _pick(rng, True, False), "n_positions": 64}
    return "gpt2", own | scale | {"activation_function": _pick(rng, *_PLAIN_ACTS), "vocab_size": 64}


def _bert(name: str) -> Any:
    def draw(rng: np.random.Generator) -> tuple[str, dict]:
        heads, _, head_dim = _heads(rng)
        settings = {"hidden_size": heads * (head_dim - 1), "num_attention_heads": heads, **_TOKENS}
        settings |= {"intermediate_size": int(rng.integers(17, 120)), "hidden_act": _pick(rng, *_PLAIN_ACTS)}
        if name == "vit":
            return name, settings | {"image_size": 8, "patch_size": 4, "qkv_bias": _pick(rng, True, False)}
        return name, settings | {"max_position_embeddings": 66, "layer_norm_eps": _pick(rng, 1e-12, 1e-5)}

    return draw


def _distilbert(rng: np.random.Generator) -> tuple[str, dict]:
    heads, _, head_dim = _heads(rng)
    settings = {"dim": heads * head_dim, "n_heads": heads, "hidden_dim": int(rng.integers(17, 120))}
    return "distilbert", settings | {"n_layers": 2, "max_position_embeddings": 64, "vocab_size": 64} | {
        "activation": _pick(rng, "gelu", "relu")
    }


def _whisper(rng: np.random.Generator) -> tuple[str, dict]:
    heads, _, head_dim = _heads(rng)
    settings = {"d_model": heads * head_dim, "encoder_attention_heads": heads, "encoder_layers": 2}
    settings |= {
        "encoder_ffn_dim": int(rng.integers(17, 120)),
        "activation_function": _pick(rng, *_PLAIN_ACTS),
    }
    settings |= {
        "decoder_layers": 1,
        "decoder_attention_heads": heads,
        "decoder_ffn_dim": 16,
        "num_mel_bins": 8,
    }
    return "whisper", settings | {"max_source_positions": 64, **_TOKENS}


_DRAWS = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi": _phi,
    "phi3": _phi3,
    "granite": _granite,
    "smollm3": _smollm3,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "olmo2": _olmo2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "bert": _bert("bert"),
    "roberta": _bert("roberta"),
    "vit": _bert("vit"),
    "distilbert": _distilbert,
    "whisper": _whisper,
}
