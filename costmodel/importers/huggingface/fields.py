"""What published fields are called: how each is checked, which of a model's fields it is, and which have no cost."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from costmodel.architectures.base import DropRate, PositiveNumber, Size
from costmodel.errors import SpecError, unknown

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "leaky_relu": "leaky_relu",
    "quick_gelu": "quick_gelu",
    "relu2": "relu_squared",
    "xielu": "xielu",
}
"""Activations by the names that published configurations use."""


WRITTEN_ACTIVATIONS = dict.fromkeys(("gelu_new", "gated-gelu", "gated-gelu_new"), "gelu_composed")
"""Those that the package writes otherwise than PyTorch has them (``transformers.activations``), as ours are called."""

UNWRITTEN_ACTIVATIONS = ("gelu_fast", "gelu_python")
"""Those that it writes in a way that none of ours is."""


def activation_named(name: str) -> str:
    """Our name of a published activation. Raises UnknownNameError."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def one_of_all(value: Any) -> Any:
    """What a list has for each layer, if that is the same for all; other values as they are."""
    return value[0] if isinstance(value, list) and value and all(one == value[0] for one in value) else value


CHECKS: dict[str, Any] = {
    "size": Size,
    "count": Annotated[int, Field(ge=0)],
    "one or two": Annotated[int, Field(ge=1, le=2)],
    "alike": Annotated[Size, BeforeValidator(one_of_all)],
    "alike count": Annotated[int, Field(ge=0), BeforeValidator(one_of_all)],
    "size or auto": Size | Literal["auto"],
    "integer": int,
    "share": DropRate,
    "factor": PositiveNumber,
    "flag": bool,
    "text": str,
    "activation": Annotated[str, AfterValidator(activation_named)],
    "texts": list[str],
    "integers": list[int],
    "sides": Size | list[Size],
    "list": list[Any],
    "anything": Any,
    "mapping": dict[str, Any],
    "table": dict[Any, Any],
}
"""The kinds of value that a field may have. A kind followed by "?" may be null, as may a field with that default."""


@cache
def checker(kind: str) -> TypeAdapter[Any]:
    """What checks a value of this kind; strict, so that neither "12" nor true is a number."""
    check = CHECKS[kind.removesuffix("?")]
    return TypeAdapter(check | None if kind.endswith("?") else check, config=ConfigDict(strict=True))


class Meaning(NamedTuple):
    """What a published field is: the kind of its values, and the fields of our model that have its value."""

    kind: str
    ours: str = ""


FIELDS: dict[str, Meaning] = {
    name: meaning
    for kind, ours, names in (
        ("size", "vocab", "vocab_size"),
        ("size", "context", "max_position_embeddings n_positions seq_length max_seq_len max_target_positions"),
        ("size", "layers", "num_hidden_layers n_layer n_layers num_layers encoder_layers"),
        ("size", "width", "hidden_size n_embd n_embed d_model dim"),
        ("size", "heads", "num_attention_heads n_head n_heads num_heads encoder_attention_heads attention_heads"),
        ("size?", "kv_heads", "num_key_value_heads num_kv_heads n_head_kv attn_config.kv_n_heads"),
        ("size?", "head_size", "head_dim d_kv"),
        ("size?", "window.size", "sliding_window"),
        ("size", "mlp_width", "intermediate_size n_inner ffn_dim ffn_hidden_size hidden_dim d_ff encoder_ffn_dim"),
        ("activation", "activation", "hidden_act hidden_activation activation_function activation"),
        ("flag", "tied", "tie_word_embeddings"),
        ("flag", "qkv_bias attention_bias", "attention_bias"),
        ("flag", "qkv_bias", "qkv_bias use_qkv_bias"),
        ("flag", "attention_bias", "attention_out_bias"),
        ("flag", "mlp_bias", "mlp_bias"),
        ("flag", "head.bias", "lm_head_bias decoder_bias"),
        ("flag", "norm_bias", "norm_bias"),
        ("flag", "qkv_bias attention_bias mlp_bias", "use_bias enable_bias bias"),
        ("factor", "qkv_clip", "clip_qkv attn_config.clip_qkv"),
        ("factor", "score_scale", "attn_config.softmax_scale attention_multiplier"),
        ("factor?", "score_cap", "attn_logit_softcapping"),
        ("factor?", "head.logit_cap", "final_logit_softcapping"),
        ("factor", "head.logit_scale", "logit_scale"),
        ("factor", "embedding_scale", "embedding_multiplier scale_emb"),
        ("factor", "residual_scale", "residual_multiplier"),
        ("flag", "embedding_norm", "emb_layer_norm_before"),
        ("flag", "token_dropout", "token_dropout"),
        ("size", "boxes", "max_2d_position_embeddings"),
        ("flag", "fused_qkv", "pack_qkv"),
        ("factor?", "", "scale_depth"),
        ("size?", "", "dim_model_base"),
        ("flag", "norm_affine", "layer_norm_elementwise_affine"),
        ("flag", "parallel", "use_parallel_residual parallel_attn"),
        ("size", "rotary.size", "rotary_dim"),
        ("size", "relative_buckets", "relative_attention_num_buckets"),
        ("size", "segments", "type_vocab_size"),
        ("size", "embedding_width", "word_embed_proj_dim embedding_size"),
        ("share", "residual_dropout", "resid_pdrop hidden_dropout resid_dropout residual_dropout"),
        ("share", "embedding_dropout", "embd_pdrop embed_dropout embedding_dropout emb_pdrop"),
        ("share", "embedding_dropout residual_dropout", "hidden_dropout_prob dropout"),
        ("share", "attention_dropout", "attention_dropout attn_pdrop attention_probs_dropout_prob"),
        ("share", "attention_dropout residual_dropout", "attn_config.attn_pdrop"),
        ("share", "mlp_dropout", "activation_dropout mlp_dropout"),
        ("share", "classes.dropout", "classifier_dropout seq_classif_dropout classifier_dropout_prob"),
        (
            "size",
            "experts.count",
            "num_local_experts num_experts n_routed_experts moe_num_experts ffn_config.moe_num_experts",
        ),
        (
            "alike count",
            "experts.per_token",
            "num_experts_per_tok experts_per_token moe_topk moe_k ffn_config.moe_top_k",
        ),
        ("alike", "experts.width", "moe_intermediate_size ffn_config.ffn_hidden_size"),
        ("size", "experts.shared_width", "shared_expert_intermediate_size"),
        ("count", "experts.shared_width", "shared_intermediate_size"),
        ("size", "mlp_width", "intermediate_size_mlp"),
        ("alike", "", "num_shared_expert"),
        ("factor", "experts.scale", "routed_scaling_factor router_scaling_factor route_scale"),
        ("size?", "latent.query_width", "q_lora_rank"),
        ("size", "latent.width", "kv_lora_rank"),
        ("flag", "", "attention_k_eq_v enable_moe_block use_double_wide_mlp"),
        ("size", "", "global_head_dim"),
        ("size?", "", "num_global_key_value_heads"),
        ("size", "experts.per_token", "top_k_experts"),
        ("count", "", "num_sparse_encoder_layers num_sparse_decoder_layers"),
        ("flag", "experts.router_bias", "router_bias"),
        ("mapping", "", "encoder decoder"),
        ("texts", "", "lora_adaptations"),
        ("size", "", "head_ratio conv_kernel_size"),
        ("size", "", "lora_rank"),
        ("size", "indexer.chosen", "index_topk"),
        ("size", "indexer.heads", "index_n_heads"),
        ("size", "indexer.head_size", "index_head_dim"),
        ("size", "state_space.state", "state_size mamba_d_state ssm_state_size"),
        ("size", "state_space.groups", "n_groups mamba_n_groups"),
        ("size", "state_space.chunk", "chunk_size mamba_chunk_size"),
        ("size", "state_space.convolution", "conv_kernel mamba_d_conv"),
        ("flag", "state_space.convolution_bias", "use_conv_bias mamba_conv_bias"),
        ("flag", "state_space.bias", "mamba_proj_bias"),
        ("flag", "state_space.output_bias", "projectors_bias"),
        ("size", "gated_delta.convolution", "linear_conv_kernel_dim"),
        ("size", "gated_delta.key_size", "linear_key_head_dim"),
        ("size", "gated_delta.value_size", "linear_value_head_dim"),
        ("size", "gated_delta.key_heads", "linear_num_key_heads"),
        ("size", "gated_delta.heads", "linear_num_value_heads"),
        ("size", "altup.streams", "altup_num_inputs"),
        ("size", "altup.laurel_rank", "laurel_rank"),
        ("size", "altup.layer_width", "hidden_size_per_layer_input"),
        ("size", "altup.layer_vocab", "vocab_size_per_layer_input"),
        ("flag", "altup.output_scale", "altup_correct_scale"),
        ("count", "", "altup_active_idx num_kv_shared_layers"),
        ("factor?", "", "altup_coef_clip"),
        ("list", "", "activation_sparsity_pattern"),
        ("factor", "head.logit_scale", "lm_head_multiplier"),
        ("size", "sound.mel_bins", "num_mel_bins"),
        ("size", "sound.places", "max_source_positions"),
        # What no field of ours is, but a rule reads.
        ("factor", "", "partial_rotary_factor rotary_pct"),
        ("mapping", "", "rope_parameters rope_scaling"),
        ("flag", "experts.shares", "norm_topk_prob"),
        ("flag", "", "use_sliding_window alibi new_decoder_architecture multi_query scale_attn_weights"),
        ("flag", "", "do_layer_norm_before _remove_final_layer_norm qk_layernorm use_qk_norm"),
        ("flag", "", "scale_decoder_outputs scale_embedding classifier_bias"),
        ("flag", "", "use_swiglu_ffn use_mask_token vision_use_head"),
        ("texts", "", "layer_types mlp_layer_types"),
        ("mapping", "", "ffn_config.ffn_act_fn"),
        ("factor?", "", "ffn_config.moe_normalize_expert_weights"),
        ("list", "", "attention_types"),
        ("integers", "", "hidden_sizes depths"),
        ("text", "", "layer_type attention_type"),
        ("flag", "", "rescale_embeddings"),
        ("count", "", "num_random_blocks"),
        ("size", "", "block_size"),
        ("flag", "", "downsample_in_first_stage downsample_in_bottleneck"),
        ("size", "", "num_stages"),
        ("share", "", "layer_scale_init_value"),
        ("integers", "", "mlp_only_layers no_rope_layers moe_layers"),
        ("size", "", "sliding_window_pattern _sliding_window_pattern"),
        ("size", "", "window_size local_attention global_attn_every_n_layers decoder_sparse_step moe_layer_interval"),
        ("size", "", "no_rope_layer_interval interleave_moe_layer_step projection_dim projection_size mlp_ratio"),
        ("integer", "", "max_window_layers"),
        ("size", "", "expand mamba_expand mamba_n_heads mamba_num_heads mamba_d_ssm block_multiple_of"),
        (
            "size",
            "",
            "full_attention_interval attn_layer_period expert_layer_period moe_shared_expert_intermediate_size",
        ),
        ("count", "", "attn_layer_offset expert_layer_offset"),
        ("size or auto", "", "mamba_d_head mamba_dt_rank time_step_rank"),
        ("integers", "", "attn_layer_indices full_attn_idxs"),
        ("flag", "", "mamba_norm_before_gate mamba_rms_norm block_auto_adjust_ff_dim"),
        ("factor", "", "block_ffn_dim_multiplier"),
        ("texts", "", "layers_block_type"),
        ("text", "", "position_embedding_type hybrid_override_pattern"),
        ("factor", "", "query_pre_attn_scalar logits_scaling"),
        ("size", "", "qk_nope_head_dim qk_rope_head_dim v_head_dim"),
        ("count", "", "first_k_dense_replace num_dense_layers"),
        ("count?", "", "n_shared_experts moe_num_shared_experts num_shared_experts"),
        ("integer", "", "moe_layer_start_index moe_layer_end_index"),
        ("size?", "", "decoder_vocab_size n_group topk_group num_decoder_layers pooler_output_size num_labels"),
        ("one or two", "", "num_ln_in_parallel_attn"),
        ("text", "", "topk_method feed_forward_proj classifier_pooling"),
        ("integer?", "", "pad_token_id"),
        ("table", "", "id2label per_layer_config"),
        ("share", "", "dropout_rate qa_dropout"),
        ("size", "", "decoder_layers decoder_attention_heads decoder_ffn_dim num_channels"),
        ("sides", "", "image_size patch_size"),
        ("activation", "", "pooler_act classifier_activation pooler_hidden_act"),
        ("flag", "", "relative_attention share_att_key position_biased_input"),
        ("flag", "", "legacy use_post_norm use_expert_bias mup_enabled"),
        ("flag?", "", "use_bidirectional_attention is_gated_act"),
        ("activation", "", "dense_act_fn"),
        ("integer", "", "max_relative_positions position_buckets"),
        ("text", "", "norm_rel_ebd"),
        ("anything", "", "pos_att_type"),
        ("size?", "", "pooler_hidden_size"),
        ("share", "", "pooler_dropout"),
        ("share?", "", "cls_dropout"),
    )
    for meaning in (Meaning(kind, ours),)
    for name in names.split()
}
"""Published fields, by name; names on one line are the same thing in different families."""


def wrong(field: str, why: str, *place: int) -> SpecError:
    """What to raise of a published field, or of one place in it."""
    return SpecError(f"{field}{''.join(f'[{number}]' for number in place)} {why}", (*field.split("."), *place))


def words(text: str) -> frozenset[str]:
    """The words in a text."""
    return frozenset(text.split())


PRECISION = ("dtype", "torch_dtype", "quantization_config", "compression_config")
"""What a question's setting `precision` says instead."""

IDLE = words(
    # Words of the vocabulary, and what generates text.
    "begin_suppress_tokens bos_token_id cls_token_id decoder_start_token_id diversity_penalty do_sample early_stopping "
    "encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty forced_bos_token_id "
    "forced_eos_token_id generation_config image_token_id image_token_index length_penalty mask_token_id max_length "
    "min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences pad_token_id prefix "
    "remove_invalid_values repetition_penalty sep_token_id suppress_tokens temperature tokenizer_class top_k top_p "
    "typical_p unk_token_id unsloth_fixed unsloth_version use_cache video_token_id vision_end_token_id "
    "vision_start_token_id vision_token_id "
    # Labels and tasks.
    "classifier_dropout custom_pipelines finetuning_task hidden_dropout id2label keys_to_ignore_at_inference label2id "
    "num_labels _num_labels problem_type task_specific_params "
    # Small constants.
    "embd_layer_norm_epsilon init_std initializer_range initializer_factor layer_norm_eps layer_norm_epsilon "
    "norm_eps norm_epsilon rms_norm_eps "
    # Bookkeeping, and how a framework runs.
    "_attn_implementation _attn_implementation_autoset _experts_implementation _name_or_path attn_implementation "
    "auto_map gradient_checkpointing is_decoder max_sequence_length model_max_length output_attentions "
    "output_hidden_states output_past output_scores pretraining_tp return_dict return_dict_in_generate "
    "sharding_strategy tf_legacy_loss tie_encoder_decoder torchscript transformers.js_config transformers_version "
    "use_bfloat16"
)
"""Fields of every family that no cost depends on."""

FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_chunk_size": (None,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_causal": (None, True),
    "is_encoder_decoder": (False,),
    "kv_sharing_modes": (None,),
    "layer_types": (None, "full_attention"),
    "num_kv_shared_layers": (None, 0),
    "number_of_conv_states": (1,),
    "per_layer_config": (None, {}),
    "pruned_heads": (None, {}),
    "sliding_window": (None,),
    "token_classification_bias": (True,),
}
"""Fields of every family that would change the cost, or what a cache holds, and the values at which they do not.

A list of equal values is as one.
"""
