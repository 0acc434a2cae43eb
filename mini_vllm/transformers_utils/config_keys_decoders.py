"""`config_keys.py` goes on: decoders with keys of their own (`KeyTable.own`), which only their model's file reads."""

from __future__ import annotations

from mini_vllm.transformers_utils.config_keys import CORE, FIXED, ROTARY, ROUTER_TRAINING, SWIGLU, KeyTable

_GEMMA = CORE | ROTARY | {"head_dim", "attention_bias", "sliding_window", "layer_types", "sliding_window_pattern"}
_GELU = {**FIXED, "hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (False,)}

DECODERS: dict[str, KeyTable] = {
    "Gemma2ForCausalLM": KeyTable(
        frozenset(_GEMMA),
        _GELU,
        ignorable=frozenset({"hidden_act", "cache_implementation"}),  # hidden_act: of Gemma 1, passed over by all
        defaults={"tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        own={"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        full_every=2,
    ),
    "Gemma3ForCausalLM": KeyTable(
        frozenset(_GEMMA | {"rope_local_base_freq"}),
        {**_GELU, "attn_logit_softcapping": ()},
        ignorable=frozenset({"cache_implementation", "_sliding_window_pattern"}),
        defaults={"tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
                  "rope_theta": 1e6, "rope_local_base_freq": 1e4, "max_position_embeddings": 131072},
        own={"query_pre_attn_scalar": 256, "final_logit_softcapping": None},
        full_every=6,
    ),
    "Phi3ForCausalLM": KeyTable(
        frozenset(CORE | ROTARY | {"sliding_window", "original_max_position_embeddings", "partial_rotary_factor"}),
        {**{key: value for key, value in SWIGLU.items() if key != "partial_rotary_factor"},
         "attention_bias": (False,)},
        ignorable=frozenset({"embd_pdrop", "resid_pdrop"}),
        defaults={"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ),
    "GraniteForCausalLM": KeyTable(
        frozenset(CORE | ROTARY | {"attention_bias", "mlp_bias"}),
        SWIGLU,
        defaults={"tie_word_embeddings": False},
        own={"embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0,
             "logits_scaling": 1.0},
    ),
    "Olmo2ForCausalLM": KeyTable(
        frozenset(CORE | ROTARY),
        {**SWIGLU, "attention_bias": (False,)},
        defaults={"tie_word_embeddings": False, "rms_norm_eps": 1e-5},
    ),
    "GptOssForCausalLM": KeyTable(
        frozenset(CORE | ROTARY | {"head_dim", "attention_bias", "sliding_window", "layer_types", "num_local_experts",
                                   "num_experts_per_tok"}),
        SWIGLU,
        ignorable=ROUTER_TRAINING | {"initial_context_length", "experts_per_token"},
        defaults={"tie_word_embeddings": False, "attention_bias": True, "head_dim": 64, "sliding_window": 128,
                  "num_local_experts": 128, "num_experts_per_tok": 4, "rms_norm_eps": 1e-5, "rope_theta": 150000.0},
        own={"swiglu_limit": 7.0, "swiglu_alpha": 1.702},
        full_every=2,
    ),
    "DeepseekV2ForCausalLM": KeyTable(
        frozenset(CORE | ROTARY | {"moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"}),
        {**SWIGLU, "attention_bias": (False,), "mlp_bias": (False,), "moe_layer_freq": (1,),
         "scoring_func": ("softmax",), "ep_size": (1,), "norm_topk_prob": (False,)},
        ignorable=ROUTER_TRAINING | {"head_dim", "qk_head_dim", "aux_loss_alpha", "seq_aux"},
        defaults={"tie_word_embeddings": False},
        own={"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
             "v_head_dim": 128, "n_shared_experts": 2, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
             "topk_method": "greedy", "n_group": None, "topk_group": None},
        head_dim_keys=("qk_nope_head_dim", "qk_rope_head_dim"),
    ),
}  # fmt: skip
