"""Settings of config.json that change no layer, and why: what no family asks for and is not here is refused.

Sources: the config classes of transformers and the configs of published models.
"""

from typing import Any

_TRAINING = "for training"
_HEAD = "behind the last layer"
_FRONT = "before the first layer"
_GENERATION = "for generation"
_IDENTITY = "says where the file came from"
_OUTPUTS = "says what the library hands back"
_LOADING = "says how the library stores or computes, not what"

_NAMES = {
    _IDENTITY: (
        "model_type architectures name_or_path transformers_version auto_map custom_pipelines "
        "unsloth_version unsloth_fixed tokenizer_class tokenizer_model processor_class language license "
        "task_specific_params finetuning_task prefix model_max_length max_sequence_length is_llama_config "
        "transformers.js_config"
    ),
    _LOADING: (
        "torch_dtype dtype use_bfloat16 chunk_size_feed_forward attn_implementation tp_plan pp_plan "
        "experts_implementation pretraining_tp gradient_checkpointing use_flash_attn "
        "use_flash_attention_2 reorder_and_upcast_attn torchscript tf_legacy_loss use_cache "
        "cache_implementation use_parallel_embedding"
    ),
    _TRAINING: (
        "attention_dropout hidden_dropout dropout activation_dropout attention_probs_dropout_prob "
        "neftune_noise_alpha hidden_dropout_prob attn_pdrop embd_pdrop resid_pdrop classifier_dropout "
        "qa_dropout seq_classif_dropout summary_first_dropout layerdrop initializer_range "
        "initializer_factor initializer_cutoff_factor init_std router_aux_loss_coef output_router_logits "
        "router_jitter_noise router_z_loss_coef apply_spec_augment mask_time_prob mask_time_length "
        "mask_time_min_masks mask_feature_prob mask_feature_length mask_feature_min_masks"
    ),
    _FRONT: (
        "vocab_size type_vocab_size pad_token_id image_size patch_size num_channels encoder_stride "
        "pixel_shuffle_factor num_mel_bins scale_embedding sinusoidal_pos_embds embedding_multiplier "
        "position_embedding_size image_token_id image_token_index video_token_id use_embedding_sharing"
    ),
    _HEAD: (
        "tie_word_embeddings num_labels id2label label2id problem_type final_logit_softcapping "
        "logit_scale logits_scaling summary_type summary_use_proj summary_activation "
        "summary_proj_to_labels pooler_output_size pooler_act pooler_fc_size pooler_num_attention_heads "
        "pooler_num_fc_layers pooler_size_per_head pooler_type use_weighted_layer_sum "
        "classifier_proj_size decoder_layers decoder_attention_heads decoder_ffn_dim decoder_layerdrop "
        "max_target_positions encoder_layerdrop median_filter_width cross_attention_hidden_size "
        "tie_weights_ lm_head_bias n_special predict_special_tokens sbert_ce_default_activation_function "
        "sentence_transformers"
    ),
    _OUTPUTS: (
        "output_hidden_states output_attentions output_past output_scores return_dict return_dict_in_generate"
    ),
    _GENERATION: (
        "bos_token_id eos_token_id sep_token_id decoder_start_token_id is_decoder begin_suppress_tokens "
        "suppress_tokens forced_bos_token_id forced_eos_token_id forced_decoder_ids bad_words_ids "
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty "
        "temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
        "encoder_no_repeat_ngram_size num_return_sequences remove_invalid_values "
        "exponential_decay_length_penalty renormalize_logits generation_config"
    ),
}

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "apply_residual_connection_post_layernorm": (False,),
    "attention_bias": (False,),
    "attention_multiplier": (1.0,),
    "directionality": ("bidi",),
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    "is_encoder_decoder": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0,),
    "position_embedding_type": ("rotary", "rope", "rope_gptj", "absolute"),
    "pruned_heads": ({},),
    "qk_layer_norms": (False,),
    "qk_layernorm": (False,),
    "residual_multiplier": (1.0,),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
    "use_resampler": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
"""Name to the values that ask for nothing."""

IRRELEVANT: dict[str, str | tuple[Any, ...]] = {
    name: why for why, names in _NAMES.items() for name in names.split()
} | _NEUTRAL
"""For every family; one that asks for a setting reads it all the same."""
