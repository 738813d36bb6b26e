"""Settings of published models as their config.json holds them: sparse, or with more than is read."""

from typing import Any

_GENERAL = {"torch_dtype": "bfloat16", "transformers_version": "4.44.0", "use_cache": True}

HUB_CONFIGS: dict[str, dict[str, Any]] = {
    "llama 3.1 8B": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": False, "vocab_size": 128256,
    },
    "llava 1.5's language model": {
        "model_type": "llama", "_name_or_path": "vicuna", "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": 32064,
    },
    "falcon 3 7B": {
        "model_type": "llama", "activation": "swiglu", "attention_bias": False, "head_dim": 256,
        "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 23040, "mlp_bias": False,
        "max_position_embeddings": 32768, "num_attention_heads": 12, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000042, "vocab_size": 131072,
    },
    "smollm2 135M inside smolvlm 2": {
        "model_type": "llama", "neftune_noise_alpha": 0.0, "pixel_shuffle_factor": 4, "qk_layer_norms": False,
        "use_resampler": False,
        "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True,
        "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "vocab_size": 49152,
    },
    "mistral 7B 0.1": {
        "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    },
    "mixtral 8x7B": {
        "model_type": "mixtral", "attention_dropout": 0.0, "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1e6,
        "router_aux_loss_coef": 0.02, "sliding_window": None,
    },
    "qwen 2.5 7B": {
        "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
        "max_position_embeddings": 131072, "max_window_layers": 28, "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 131072, "use_mrope": False, "use_sliding_window": False,
    },
    "qwen 3 30B-A3B": {
        "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
        "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "sliding_window": None, "use_sliding_window": False,
    },
    "gemma 7B": {
        "model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 3072,
        "head_dim": 256, "intermediate_size": 24576, "max_position_embeddings": 8192,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 10000.0,
    },
    "gemma 2 9B": {
        "model_type": "gemma2", "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "num_attention_heads": 16, "num_hidden_layers": 42,
        "num_key_value_heads": 8, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096,
    },
    "gemma 3 1B": {
        "model_type": "gemma3_text", "attn_logit_softcapping": None, "cache_implementation": "hybrid",
        "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
    },
    "gemma 3 4B's language model": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "phi 4": {
        "model_type": "phi3", "attention_bias": False, "embd_pdrop": 0.0, "hidden_size": 5120,
        "intermediate_size": 17920, "max_position_embeddings": 16384, "num_attention_heads": 40,
        "num_hidden_layers": 40, "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 250000,
        "sliding_window": None,
    },
    "phi 2": {
        "model_type": "phi", "attention_dropout": 0.0, "embd_pdrop": 0.0, "hidden_act": "gelu_new",
        "hidden_size": 2560, "intermediate_size": 10240, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": False, "resid_pdrop": 0.1,
        "rope_scaling": None, "rope_theta": 10000.0,
    },
    "olmo 2 7B": {
        "model_type": "olmo2", "attention_bias": False, "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
    },
    "granite 3.1 8B": {
        "model_type": "granite", "attention_bias": False, "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0, "hidden_size": 4096, "intermediate_size": 12800,
        "logits_scaling": 16.0, "max_position_embeddings": 131072, "mlp_bias": False,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000000.0,
    },
    "smollm3 3B": {
        "model_type": "smollm3", "attention_bias": False, "hidden_size": 2048, "intermediate_size": 11008,
        "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536, "max_window_layers": 28,
        "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "use_sliding_window": False,
    },
    "command r": {
        "model_type": "cohere", "attention_bias": False, "hidden_act": "silu", "hidden_size": 8192,
        "intermediate_size": 22528, "layer_norm_eps": 1e-05, "logit_scale": 0.0625,
        "max_position_embeddings": 131072, "model_max_length": 131072, "num_attention_heads": 64,
        "num_hidden_layers": 40, "num_key_value_heads": 64, "pretraining_tp": 1, "rope_theta": 8000000.0,
        "use_qk_norm": False,
    },
    "command r7b": {
        "model_type": "cohere2", "attention_bias": False, "cache_implementation": "hybrid", "head_dim": 128,
        "hidden_size": 4096, "intermediate_size": 14336, "layer_norm_eps": 1e-05, "layer_switch": 4,
        "logit_scale": 0.25, "max_position_embeddings": 8192, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000,
        "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4,
        "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True,
        "use_parallel_embedding": True,
    },
    "gpt 2": {
        "model_type": "gpt2", "n_special": 0, "predict_special_tokens": True,
        "activation_function": "gelu_new", "attn_pdrop": 0.1, "n_ctx": 1024,
        "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "layer_norm_epsilon": 1e-05,
        "summary_type": "cls_index", "task_specific_params": {"text-generation": {"do_sample": True}},
    },
    "pythia 1B": {
        "model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 2048, "intermediate_size": 8192,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 8,
        "num_hidden_layers": 16, "rotary_emb_base": 10000, "rotary_pct": 0.25, "use_parallel_residual": True,
        "tie_word_embeddings": False,
    },
    "falcon 7B": {
        "model_type": "falcon", "alibi": False, "apply_residual_connection_post_layernorm": False,
        "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}, "bias": False,
        "hidden_dropout": 0.0, "hidden_size": 4544, "layer_norm_epsilon": 1e-05, "multi_query": True,
        "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32,
        "parallel_attn": True,
    },
    "bert": {
        "model_type": "bert", "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        "attention_probs_dropout_prob": 0.1, "directionality": "bidi",
        "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12,
        "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
        "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 119547,
    },
    "roberta": {
        "model_type": "roberta", "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "num_attention_heads": 12,
        "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1,
    },
    "distilbert": {
        "model_type": "distilbert", "activation": "gelu", "attention_dropout": 0.1, "dim": 768,
        "dropout": 0.1, "hidden_dim": 3072, "max_position_embeddings": 512, "n_heads": 12, "n_layers": 6,
        "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
    },
    "vit": {
        "model_type": "vit", "encoder_stride": 16, "hidden_size": 768, "image_size": 224,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "num_attention_heads": 12,
        "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": True, "id2label": {"0": "tench"},
    },
    "whisper tiny": {
        "model_type": "whisper", "activation_dropout": 0.0, "activation_function": "gelu",
        "apply_spec_augment": False, "begin_suppress_tokens": [220, 50257], "d_model": 384,
        "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "decoder_layers": 4,
        "encoder_attention_heads": 6, "encoder_ffn_dim": 1536, "encoder_layers": 4,
        "forced_decoder_ids": [[1, 50259]], "is_encoder_decoder": True, "max_length": 448,
        "max_source_positions": 1500, "max_target_positions": 448, "num_hidden_layers": 4,
        "num_mel_bins": 80, "scale_embedding": False, "suppress_tokens": [1, 2], "vocab_size": 51865,
    },
}  # fmt: skip
"""Model to its settings. Sources: the config.json files of the models' repositories, shortened where a key is
of the same kind as one that stands here."""

for _settings in HUB_CONFIGS.values():
    _settings.update({name: value for name, value in _GENERAL.items() if name not in _settings})
