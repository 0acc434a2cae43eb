"""Gemma 2 and 3, Phi-3, Granite, OLMo 2, GPT-OSS, DeepSeek-V2 and the ways to stretch rotary positions, beside
transformers: logits in one pass and in chunks, and 64 greedy tokens. How: `transformers_pairs.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.needs_torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from mini_vllm.tests.models.transformers_pairs import VOCAB, Pair, prompts  # noqa: E402  # needs torch

_ALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256, "initializer_range": 0.2,
    "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_GEMMA = {**_ALL, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 12}
_GLOBAL = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
_OSS_YARN = {**_YARN, "rope_theta": 150000.0, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
_OSS = {**_ALL, "head_dim": 32, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 12,
        "rope_parameters": _OSS_YARN}  # fmt: skip
_MLA = {
    **_ALL, "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 20, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 32, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}  # fmt: skip
_LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("Gemma2", _GEMMA),
    "gemma2-caps-bite": ("Gemma2", {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0}),
    "gemma2-without-caps": (
        "Gemma2", {**_GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True,
                   "tie_word_embeddings": False}),
    "gemma3": ("Gemma3Text", {**_GEMMA, "num_hidden_layers": 7}),
    "gemma3-scaled": (
        "Gemma3Text",
        {**_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
         "final_logit_softcapping": 5.0,
         "rope_parameters": {"full_attention": _GLOBAL,
                             "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}}),
    "phi3": ("Phi3", _ALL),
    "phi3-window-partial": (
        "Phi3", {**_ALL, "sliding_window": 11, "num_key_value_heads": 4,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "granite": ("Granite", {**_ALL, **_MULTIPLIERS}),
    "granite-tied-bias": (
        "Granite", {**_ALL, **_MULTIPLIERS, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "olmo2": ("Olmo2", _ALL),
    "olmo2-mha": ("Olmo2", {**_ALL, "num_key_value_heads": 4, "rms_norm_eps": 1e-3}),
    "gpt-oss": ("GptOss", _OSS),
    "gpt-oss-plain-rope": (
        "GptOss", {**_OSS, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}, "num_experts_per_tok": 1,
                   "layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
    "deepseek-v2": ("DeepseekV2", _MLA),
    "deepseek-v2-groups": (
        "DeepseekV2", {**_MLA, "q_lora_rank": 24, "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2,
                       "first_k_dense_replace": 0}),
    "deepseek-v2-yarn-stacked": (
        "DeepseekV2", {**_MLA, "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.1}}),
    "llama-yarn": ("Llama", {**_ALL, "rope_parameters": _YARN}),
    "llama-yarn-factor": ("Llama", {**_ALL, "rope_parameters": {**_YARN, "attention_factor": 1.3, "beta_fast": 16.0}}),
}  # fmt: skip


@pytest.fixture(scope="module", params=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    family, sizes = CASES[request.param]
    seed, folder = sorted(CASES).index(request.param), tmp_path_factory.mktemp(request.param)
    yield Pair(family, sizes, seed, folder, stacked="stacked" in request.param)
    torch.set_num_threads(threads)


def test_logits(pair: Pair) -> None:
    """In one pass, then in uneven chunks: max |difference| <= 1e-4."""
    tokens = np.array(prompts(1)[0] + prompts(2)[1] + list(range(3, 60)))
    for cuts in ([0, len(tokens)], [0, 5, 6, len(tokens) - 20, len(tokens)]):
        assert pair.check_logits(tokens, cuts) <= 1e-4


@pytest.mark.slow
def test_64_greedy_tokens(pair: Pair) -> None:
    """20 ragged prompts, in one batch and one by one, with what the engine takes by default."""
    pair.check_greedy()
