"""Every family against transformers: logits, and 64 greedy tokens on 20 ragged prompts, in one batch and one by one.

How: `transformers_pairs.py`. `generate` of transformers itself runs on a few.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams

pytestmark = pytest.mark.needs_torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from mini_vllm.tests.models.transformers_pairs import VOCAB, Pair, prompts  # noqa: E402  # needs torch

_ALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_GATED: dict[str, Any] = {
    **_ALL, "intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 32, "initializer_range": 0.2
}  # fmt: skip
_WIDE: dict[str, Any] = {**_GATED, "hidden_size": 128}  # Qwen2 has no head_dim: 128 / 4 heads = 32
_WIDE.pop("head_dim")
_OPT: dict[str, Any] = {**_ALL, "hidden_size": 128, "word_embed_proj_dim": 128, "ffn_dim": 96, "init_std": 0.2}
_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 500000.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_MOE = {**_GATED, "num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN_MOE = {**_GATED, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("Llama", _GATED),
    "llama-mha-tied": ("Llama", {**_GATED, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-mqa-bias": ("Llama", {**_GATED, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama-rope-linear": ("Llama", {**_GATED, "rope_parameters": _LINEAR}),
    "llama-rope-llama3": ("Llama", {**_GATED, "rope_parameters": _LLAMA3}),
    "mistral": ("Mistral", {**_GATED, "sliding_window": None}),
    "mistral-window": ("Mistral", {**_GATED, "sliding_window": 11}),
    "qwen2": ("Qwen2", _WIDE),
    "qwen2-tied-window": (
        "Qwen2",
        {**_WIDE, "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", _GATED),
    "qwen3-mha-bias": ("Qwen3", {**_GATED, "num_key_value_heads": 4, "attention_bias": True}),
    "mixtral": ("Mixtral", _MOE),
    "mixtral-stacked": ("Mixtral", _MOE),
    "mixtral-one-expert-window-tied": (
        "Mixtral",
        {**_MOE, "num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 11, "tie_word_embeddings": True},
    ),
    "mixtral-all-experts": ("Mixtral", {**_MOE, "num_local_experts": 4, "num_experts_per_tok": 4}),
    "qwen3-moe": ("Qwen3Moe", {**_QWEN_MOE, "norm_topk_prob": True}),
    "qwen3-moe-stacked": ("Qwen3Moe", _QWEN_MOE),
    "qwen3-moe-every-other-layer": ("Qwen3Moe", {**_QWEN_MOE, "decoder_sparse_step": 2}),
    "qwen3-moe-dense-first": ("Qwen3Moe", {**_QWEN_MOE, "mlp_only_layers": [0], "num_experts": 64}),
    "opt": ("OPT", _OPT),
    "opt-norm-after": ("OPT", {**_OPT, "do_layer_norm_before": False}),
}


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
    """Whole prompts in one pass, then the same in three uneven chunks: max |difference| <= 1e-4."""
    tokens = np.array(prompts(1)[0] + prompts(2)[1] + list(range(3, 60)))
    for cuts in ([0, len(tokens)], [0, 5, 6, len(tokens) - 20, len(tokens)]):
        assert pair.check_logits(tokens, cuts) <= 1e-4


def test_64_greedy_tokens(pair: Pair) -> None:
    """20 ragged prompts: one batch, then one by one; both must be what transformers chooses."""
    pair.check_greedy()


def test_generate_of_transformers_says_the_same(pair: Pair) -> None:
    llm = LLM(str(pair.folder), num_blocks=100)
    asked = prompts()[:2]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    ours = llm.generate([{"prompt_token_ids": p} for p in asked], params, use_tqdm=False)
    pair.reference.generation_config.eos_token_id = None
    for prompt, output in zip(asked, ours, strict=True):
        ids = torch.tensor([prompt])
        theirs = pair.reference.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert theirs[0, len(prompt) :].tolist() == list(output.outputs[0].token_ids)


def test_the_library_reads_our_random_checkpoints_alike(tmp_path: Path) -> None:
    """bf16, sharded, with the older spelling of the rope keys."""
    from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint

    config = {key: value for key, value in _GATED.items() if key != "initializer_range"}
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 5000.0, "rms_norm_eps": 1e-5,
               "rope_scaling": {"type": "linear", "factor": 2.0}, "tie_word_embeddings": False}  # fmt: skip
    save_random_checkpoint(tmp_path, config, dtype="BF16", shards=3)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    llm = LLM(str(tmp_path), num_blocks=32)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
    prompt = prompts(3)[2]
    [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    tokens = list(output.outputs[0].token_ids)
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == tokens
    logprobs = torch.log_softmax(logits, -1)
    for row, found in enumerate(output.outputs[0].logprobs or []):
        for token, value in found.items():
            assert abs(logprobs[row, token].item() - value.logprob) <= 1e-4
