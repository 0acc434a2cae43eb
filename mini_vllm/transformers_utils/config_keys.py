"""Which keys of `config.json` each architecture may have: used, inert, or supported with certain values only.

One table per architecture, so that adding a model is a declaration that a reader can check against its paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Metadata, training, and what only the Python class of another library looks at: no influence on the logits.
IGNORABLE = frozenset({
    "architectures", "model_type", "transformers_version", "_name_or_path", "use_cache",
    "initializer_range", "init_std", "attention_dropout", "activation_dropout", "dropout", "layerdrop",
    "hidden_dropout", "pad_token_id",
    "sep_token_id", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "prefix", "output_hidden_states", "output_attentions", "return_dict", "label2id",
    "task_specific_params", "chunk_size_feed_forward", "pretraining_tp", "finetuning_task",
    "tokenizer_class", "max_length", "temperature", "top_k", "top_p", "do_sample", "repetition_penalty",
    "unsloth_fixed", "unsloth_version", "keys_to_ignore_at_inference", "auto_map",
    "is_llama_config", "transformers.js_config",
})  # fmt: skip
READ_BY_POOLERS = frozenset({
    "num_labels", "id2label", "problem_type", "is_matryoshka", "matryoshka_dimensions", "sentence_transformers",
    "sbert_ce_default_activation_function",
})  # fmt: skip
"""Of any architecture: looked at by `models/adapters.py`, `config/pooler.py` and `layers/pooler/activations.py`."""

GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""What `generation_config.json` may say about sampling.
Upstream: upstream/vllm/config/model.py:1465 — `ModelConfig.get_diff_sampling_param` — the same six."""

FIXED: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
    "torchscript": (False,),
    "tie_encoder_decoder": (False,),
}
CORE = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
         "tie_word_embeddings"}  # fmt: skip
ROTARY = {"intermediate_size", "num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"}
SWIGLU: dict[str, tuple[Any, ...]] = {**FIXED, "hidden_act": ("silu",), "partial_rotary_factor": (1.0,),
                                       "use_mrope": (False,)}  # fmt: skip
_QWEN = CORE | ROTARY | {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}

ROUTER_TRAINING = frozenset({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"})


@dataclass(frozen=True)
class KeyTable:
    """`used`: read by the parser. `fixed`: allowed with these values. `ignorable`: inert for this architecture.
    `defaults`: what the family assumes where a key is absent.

    `own`: keys that only the model's file reads, each with the family's default; a value in a file must be of the
    default's kind, or null. They are handed on as `HFConfig.own`.
    `full_every`: without `layer_types`, every `full_every`-th layer has full attention, and the others have the window;
    0: one window for all. `head_dim_keys`: the size of a head is the sum of these.
    `like`: the architecture whose equation it has; "": its own. `norm_key`: where the norms' epsilon stands.
    `is_encoder`: it attends to both sides; all heads are KV heads too."""

    used: frozenset[str]
    fixed: dict[str, tuple[Any, ...]]
    ignorable: frozenset[str] = frozenset()
    defaults: dict[str, Any] = field(default_factory=dict)
    like: str = ""
    norm_key: str = "rms_norm_eps"
    is_encoder: bool = False
    own: dict[str, Any] = field(default_factory=dict)
    full_every: int = 0
    head_dim_keys: tuple[str, ...] = ()


ARCHITECTURES: dict[str, KeyTable] = {
    "LlamaForCausalLM": KeyTable(
        frozenset(CORE | ROTARY | {"head_dim", "attention_bias", "mlp_bias"}),
        {**SWIGLU, "rope_interleaved": (False,)},
        defaults={"tie_word_embeddings": False},
    ),
    "MistralForCausalLM": KeyTable(
        frozenset(CORE | ROTARY | {"head_dim", "sliding_window"}),
        {**SWIGLU, "attention_bias": (False,), "mlp_bias": (False,)},
        defaults={"tie_word_embeddings": False, "num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "Qwen2ForCausalLM": KeyTable(
        frozenset(_QWEN),
        {**SWIGLU, "attention_bias": (True,)},
        ignorable=frozenset({"head_dim"}),
        defaults={"tie_word_embeddings": False, "max_window_layers": 28},
    ),
    "Qwen3ForCausalLM": KeyTable(
        frozenset(_QWEN | {"head_dim", "attention_bias"}),
        SWIGLU,
        defaults={"tie_word_embeddings": False, "max_window_layers": 28, "head_dim": 128},
    ),
    "MixtralForCausalLM": KeyTable(
        frozenset(CORE | ROTARY | {"head_dim", "sliding_window", "num_local_experts", "num_experts_per_tok"}),
        {**SWIGLU, "attention_bias": (False,), "mlp_bias": (False,)},
        ignorable=ROUTER_TRAINING,
        defaults={"tie_word_embeddings": False, "num_key_value_heads": 8, "num_local_experts": 8,
                  "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    ),
    "Qwen3MoeForCausalLM": KeyTable(
        frozenset(CORE | ROTARY | {"head_dim", "num_experts", "num_local_experts", "num_experts_per_tok",
                                     "moe_intermediate_size", "norm_topk_prob", "mlp_only_layers",
                                     "decoder_sparse_step"}),
        {**SWIGLU, "attention_bias": (False,), "use_sliding_window": (False,),
         "shared_expert_intermediate_size": (0,)},
        ignorable=ROUTER_TRAINING | {"sliding_window", "max_window_layers"},
        defaults={"tie_word_embeddings": False, "num_key_value_heads": 4, "num_experts_per_tok": 8,
                  "moe_intermediate_size": 768, "decoder_sparse_step": 1},
    ),
    "OPTForCausalLM": KeyTable(
        frozenset(CORE | {"ffn_dim", "word_embed_proj_dim", "do_layer_norm_before", "enable_bias"}),
        {**FIXED, "activation_function": ("relu",), "_remove_final_layer_norm": (False,),
         "layer_norm_elementwise_affine": (True,)},
        defaults={"tie_word_embeddings": True},
    ),
}  # fmt: skip

_CONFIGS = "mini_vllm.transformers_utils.configs"
MEDIA: dict[str, type | str] = {
    "LlavaForConditionalGeneration": f"{_CONFIGS}.llava.LlavaConfig",
    "Qwen2VLForConditionalGeneration": f"{_CONFIGS}.qwen2_vl.Qwen2VLConfig",
}
"""Architecture of a model that takes media -> its config: `split` cuts `config.json` into the language model's and the
rest, which has `text_architecture`, `least_parameters` and `summary`."""
