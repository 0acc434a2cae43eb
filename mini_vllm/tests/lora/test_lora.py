"""Adapters in the engine: a mixed batch gives what each alone gives, and what the merged weights give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, LoRARequest, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.lora.adapters import ALL, ATTENTION, save_adapter, save_merged
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES, save_tiny

GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
PROMPTS = [[5, 9, 2, 7, 11, 3], [5, 9, 2, 7, 11, 3], [8, 1, 4], [5, 9, 2, 7, 11, 3], [2] * 40]
needs_ranks = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
SETTINGS = {"dtype": "float64", "max_model_len": 64, "num_blocks": 64, "skip_tokenizer_init": True}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base, tmp_path_factory):
    """Three: of all projections; of attention with another rank and rsLoRA; of one projection in float16."""
    folder = tmp_path_factory.mktemp("adapters")
    paths = [
        save_adapter(folder / "a", base, seed=1),
        save_adapter(folder / "b", base, seed=2, rank=8, alpha=4, targets=ATTENTION, use_rslora=True),
        save_adapter(folder / "c", base, seed=3, rank=1, alpha=2, targets=("down_proj",), dtype=np.float16),
    ]
    return [LoRARequest(path.name, i, str(path)) for i, path in enumerate(paths, 1)]


def outcome(outputs):
    """Tokens, and the log-probabilities of the chosen ones."""
    return [
        (list(o.outputs[0].token_ids), [e[t].logprob for t, e in zip(o.outputs[0].token_ids, o.outputs[0].logprobs)])
        for o in outputs
    ]


def assert_same(found, expected):
    for (tokens, logprobs), (want, want_logprobs) in zip(found, expected, strict=True):
        assert tokens == want
        assert np.allclose(logprobs, want_logprobs, rtol=0, atol=1e-9)


def loaded(base, **settings):
    return LLM(str(base), enable_lora=True, **{**SETTINGS, "max_loras": 3, **settings})


@pytest.mark.parametrize("eager", [False, True])
def test_a_mixed_batch_equals_each_alone_and_the_merged_weights(base, adapters, tmp_path, eager):
    a, b, c = adapters
    wanted = [a, None, b, c, a]
    llm = loaded(base, enforce_eager=eager)
    mixed = llm.generate(PROMPTS, GREEDY, lora_request=wanted, use_tqdm=False)
    for prompt, request, output in zip(PROMPTS, wanted, mixed, strict=True):
        alone = llm.generate([prompt], GREEDY, lora_request=request, use_tqdm=False)
        assert_same(outcome(alone), outcome([output]))
        folder = base if request is None else save_merged(tmp_path / request.name, base, Path(request.path))
        merged = LLM(str(folder), enforce_eager=True, **SETTINGS)
        assert_same(outcome(merged.generate([prompt], GREEDY, use_tqdm=False)), outcome([output]))
    texts = {tuple(outcome([output])[0][0]) for output in (mixed[0], mixed[1], mixed[3])}
    assert len(texts) == 3, "one prompt, three adapters: the outputs must differ, or nothing was tested"
    assert mixed[0].lora_request is a and mixed[1].lora_request is None
