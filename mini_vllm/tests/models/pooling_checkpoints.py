"""Tiny random checkpoints of every architecture that pools, the same on every machine; and prompts for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint

VOCAB = 151
_ALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 96,
    "max_position_embeddings": 64, "pad_token_id": 0, "torch_dtype": "float32",
}  # fmt: skip
_BERT = {**_ALL, "model_type": "bert", "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
_MODERN = {
    **_ALL, "model_type": "modernbert", "local_attention": 8, "global_attn_every_n_layers": 3, "norm_eps": 1e-5,
    "hidden_activation": "gelu", "norm_bias": False, "attention_bias": False, "mlp_bias": False,
    "classifier_pooling": "mean", "classifier_bias": False, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
    "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_DECODER = {
    **_ALL, "num_key_value_heads": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True,
}  # fmt: skip
_THREE = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
_ONE = {"id2label": {"0": "score"}, "label2id": {"score": 0}}

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {**_BERT, "architectures": ["BertModel"], "matryoshka_dimensions": [16, 32, 64]},
    "bert-cross-encoder": {**_BERT, "architectures": ["BertForSequenceClassification"], **_ONE},
    "colbert": {**_BERT, "architectures": ["HF_ColBERT"], "dim": 24},
    "modernbert": {**_MODERN, "architectures": ["ModernBertModel"]},
    "modernbert-classifier": {**_MODERN, "architectures": ["ModernBertForSequenceClassification"], **_THREE},
    "qwen3-embedding": {
        **_DECODER, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32,
        "is_matryoshka": True,
    },
    "qwen3-classifier": {
        **_DECODER, "architectures": ["Qwen3ForSequenceClassification"], "model_type": "qwen3", "head_dim": 32,
        **_THREE,
    },
    "qwen2-reward": {**_DECODER, "architectures": ["Qwen2ForRewardModel"], "model_type": "qwen2"},
    "qwen2-process-reward": {**_DECODER, "architectures": ["Qwen2ForProcessRewardModel"], "model_type": "qwen2"},
}  # fmt: skip
TASKS = {
    "bert": ("embed", "token_embed"), "bert-cross-encoder": ("classify", "token_classify"), "colbert": ("token_embed",),
    "modernbert": ("embed", "token_embed"), "modernbert-classifier": ("classify", "token_classify"),
    "qwen3-embedding": ("embed", "token_embed"), "qwen3-classifier": ("classify", "token_classify"),
    "qwen2-reward": ("token_classify",), "qwen2-process-reward": ("token_classify",),
}  # fmt: skip


def save_family(family: str, folder: Path) -> Path:
    """The checkpoint of this family, in `folder`."""
    return save_random_checkpoint(folder, FAMILIES[family], seed=sum(map(ord, family)))


def engine_args(family: str) -> dict[str, Any]:
    """What the family needs beside its checkpoint."""
    return {"runner": "pooling"} if family == "qwen3-embedding" else {}


def prompts(seed: int = 0) -> list[list[int]]:
    """Ragged token ids: 1 to 41 of them, with tag 7 in some."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(3, VOCAB, n - 1).tolist(), 7] for n in (5, 1, 17, 8, 41, 8, 30)]
