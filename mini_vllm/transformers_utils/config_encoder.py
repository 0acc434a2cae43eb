"""Keys of `config.json` of the models that pool: encoders, and language models with another head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mini_vllm.transformers_utils.config_keys import KeyTable

_SIZES = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
          "intermediate_size"}  # fmt: skip
_FIXED: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,), "is_decoder": (False,), "add_cross_attention": (False,), "pruned_heads": ({},),
    "torchscript": (False,), "tie_encoder_decoder": (False,), "tie_word_embeddings": (False, True),
}  # fmt: skip
_BERT = KeyTable(
    frozenset(_SIZES | {"layer_norm_eps", "type_vocab_size", "hidden_act"}),
    {**_FIXED, "position_embedding_type": ("absolute",)},
    ignorable=frozenset({
        "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "gradient_checkpointing",
        "cls_token_id", "mask_token_id",
    }),
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2},
    norm_key="layer_norm_eps",
    is_encoder=True,
)  # fmt: skip
_MODERNBERT = KeyTable(
    frozenset(_SIZES | {
        "norm_eps", "norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "classifier_pooling",
        "classifier_activation", "local_attention", "global_attn_every_n_layers", "layer_types", "rope_parameters",
        "rope_scaling", "global_rope_theta", "local_rope_theta",
    }),
    {**_FIXED, "hidden_activation": ("gelu",)},
    ignorable=frozenset({
        "attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout", "decoder_bias",
        "deterministic_flash_attn", "initializer_cutoff_factor", "sparse_prediction", "sparse_pred_ignore_index",
        "reference_compile", "repad_logits_with_grad", "cls_token_id", "gradient_checkpointing", "layer_norm_eps",
        "position_embedding_type",
    }),
    defaults={"norm_eps": 1e-5},
    norm_key="norm_eps",
    is_encoder=True,
)  # fmt: skip
_OF_CLASSIFIERS = {"classifier_bias", "classifier_pooling", "classifier_activation"}

ENCODERS: dict[str, KeyTable] = {
    "BertModel": _BERT,
    "BertForSequenceClassification": _BERT,
    "HF_ColBERT": replace(_BERT, used=_BERT.used | {"colbert_dim", "dim", "projection_dim"}),
    "ModernBertModel": replace(
        _MODERNBERT, used=_MODERNBERT.used - _OF_CLASSIFIERS, ignorable=_MODERNBERT.ignorable | _OF_CLASSIFIERS
    ),
    "ModernBertForSequenceClassification": _MODERNBERT,
}
LIKE = {
    "LlamaModel": "LlamaForCausalLM",
    "MistralModel": "MistralForCausalLM",
    "Qwen2Model": "Qwen2ForCausalLM",
    "Qwen3Model": "Qwen3ForCausalLM",
    "LlamaForSequenceClassification": "LlamaForCausalLM",
    "MistralForSequenceClassification": "MistralForCausalLM",
    "Qwen2ForSequenceClassification": "Qwen2ForCausalLM",
    "Qwen3ForSequenceClassification": "Qwen3ForCausalLM",
    "Qwen2ForRewardModel": "Qwen2ForCausalLM",
    "Qwen2ForProcessRewardModel": "Qwen2ForCausalLM",
}
"""A model that pools -> the language model whose keys it has.
Upstream knows the suffixes: upstream/vllm/config/model.py:1919 — `_SUFFIX_TO_DEFAULTS`."""
