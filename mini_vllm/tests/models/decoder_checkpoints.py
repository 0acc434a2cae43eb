"""Tiny random checkpoints of the architectures of `config_keys_decoders.py`, from numpy alone.

The golden numbers of transformers and of real vLLM (`golden/decoders.json.xz`) were recorded on exactly these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint

_ALL: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "bos_token_id": 1, "pad_token_id": 0,
    "eos_token_id": 2, "torch_dtype": "float32", "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
_WIDE = {**_ALL, "hidden_size": 128}  # without a head_dim of its own: 128 / 4 heads = 32
_GEMMA = {
    **{key: value for key, value in _ALL.items() if key != "hidden_act"}, "head_dim": 32, "sliding_window": 24,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "tie_word_embeddings": True,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}

DECODERS: dict[str, dict[str, Any]] = {
    "gemma2": {
        **_GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attn_logit_softcapping": 6.0,
        "final_logit_softcapping": 12.0, "rope_theta": 10000.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3": {
        **_GEMMA, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    },
    "phi3": {
        **_WIDE, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "original_max_position_embeddings": 64,
        "rope_theta": 10000.0, "rope_scaling": {
            "type": "longrope", "short_factor": [1.0 + 0.05 * i for i in range(16)],
            "long_factor": [1.0 + 0.7 * i for i in range(16)]},
    },
    "granite": {
        **_WIDE, "architectures": ["GraniteForCausalLM"], "model_type": "granite", "embedding_multiplier": 3.0,
        "attention_multiplier": 0.1, "residual_multiplier": 0.4, "logits_scaling": 2.0, "attention_bias": True,
        "mlp_bias": True, "rope_theta": 10000.0,
    },
    "olmo2": {**_WIDE, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rope_theta": 10000.0},
    "gpt-oss": {
        **_ALL, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 32,
        "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 24, "rope_theta": 150000.0,
        "attention_bias": True, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_scaling": {**{k: v for k, v in _YARN.items() if k != "rope_theta"}, "truncate": False,
                         "beta_fast": 32.0, "beta_slow": 1.0},
    },
    "deepseek-v2": {
        **_ALL, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_key_value_heads": 4,
        "q_lora_rank": 24, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2,
        "first_k_dense_replace": 1, "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2,
        "routed_scaling_factor": 1.5, "norm_topk_prob": False, "rope_theta": 10000.0,
        "rope_scaling": {**{k: v for k, v in _YARN.items() if k != "rope_theta"}, "mscale": 0.7,
                         "mscale_all_dim": 0.7},
    },
    "llama-dynamic": {
        **_ALL, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 32,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "factor": 2.0},
    },
    "qwen3-yarn": {
        **_ALL, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32,
        "rope_theta": 10000.0, "rope_scaling": {k: v for k, v in _YARN.items() if k != "rope_theta"},
    },
}  # fmt: skip


def save_decoder(name: str, folder: Path) -> Path:
    """Write the checkpoint into `folder` and return it."""
    return save_random_checkpoint(folder, DECODERS[name], seed=sorted(DECODERS).index(name), std=0.15)
