"""Adapters in the engine: a mixed batch gives what each alone gives, and what the merged weights give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, LoRARequest, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.helpers import FEW_GRAPHS
from mini_vllm.tests.lora.adapters import ALL, ATTENTION, save_adapter, save_merged
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

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
    found = []
    for output in outputs:
        tokens, entries = list(output.outputs[0].token_ids), output.outputs[0].logprobs
        found.append((tokens, [entry[token].logprob for token, entry in zip(tokens, entries, strict=True)]))
    return found


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


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "family", ["qwen2", "opt", *(pytest.param(f, marks=SLOW) for f in ("qwen3", "mistral-window"))]
)
def test_other_families(family, tmp_path):
    targets = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2") if family == "opt" else ALL
    base = save_tiny(family, tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, seed=1, targets=targets)
    request = LoRARequest("one", 1, str(adapter))
    merged = LLM(str(save_merged(tmp_path / "merged", base, adapter)), **SETTINGS)
    expected = merged.generate(PROMPTS, GREEDY, use_tqdm=False)
    found = loaded(base).generate(PROMPTS, GREEDY, lora_request=request, use_tqdm=False)
    assert_same(outcome(found), outcome(expected))


@pytest.mark.parametrize("quantization", ["int4", *(pytest.param(q, marks=SLOW) for q in ("int8", "nf4", "fp8"))])
def test_a_quantized_base(base, adapters, quantization):
    """The base in codes, the patch in floats: mixed as alone, compiled as plain."""
    settings = {"quantization": quantization}
    if quantization in ("int4", "nf4"):
        settings["quantization_config"] = {"group_size": 16} if quantization == "int4" else {"block_size": 16}
    wanted = [adapters[0], None, adapters[1], adapters[2], adapters[0]]
    llm = loaded(base, **settings)
    mixed = outcome(llm.generate(PROMPTS, GREEDY, lora_request=wanted, use_tqdm=False))
    for prompt, request, found in zip(PROMPTS, wanted, mixed, strict=True):
        assert_same(outcome(llm.generate([prompt], GREEDY, lora_request=request, use_tqdm=False)), [found])
    plain = LLM(str(base), enforce_eager=True, enable_lora=True, max_loras=3, **SETTINGS, **settings)
    assert_same(outcome(plain.generate(PROMPTS, GREEDY, lora_request=wanted, use_tqdm=False)), mixed)


@needs_ranks
@pytest.mark.parametrize("family", ["llama", pytest.param("opt", marks=SLOW)])
def test_two_ranks(family, tmp_path):
    targets = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2") if family == "opt" else ALL
    base = save_tiny(family, tmp_path / "base")
    requests = [
        LoRARequest(f"{i}", i, str(save_adapter(tmp_path / f"{i}", base, seed=i, targets=targets))) for i in (1, 2)
    ]
    wanted = [requests[0], None, requests[1], requests[0], requests[1]]
    expected = outcome(loaded(base).generate(PROMPTS, GREEDY, lora_request=wanted, use_tqdm=False))
    llm = loaded(base, tensor_parallel_size=2)
    try:
        assert_same(outcome(llm.generate(PROMPTS, GREEDY, lora_request=wanted, use_tqdm=False)), expected)
        assert llm.llm_engine.list_loras() == {1, 2}
    finally:
        llm.llm_engine.shutdown()


@pytest.mark.parametrize(
    "settings",
    [
        {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": FEW_GRAPHS},
        {"max_num_batched_tokens": 8, "max_num_seqs": 4},
        {"num_blocks": 8, "block_size": 4},
        {"async_scheduling": True},
        {"max_loras": 1},
        {"max_loras": 1, "enable_prefix_caching": False},
    ],
    ids=["graphs", "chunks", "preemption", "async", "one-slot", "one-slot-no-cache"],
)  # fmt: skip
def test_however_it_is_scheduled(base, adapters, settings):
    prompts = [*PROMPTS[:4], [2] * 18]
    wanted = [adapters[0], None, adapters[1], adapters[2], adapters[1]]
    expected = loaded(base, enforce_eager=True).generate(prompts, GREEDY, lora_request=wanted, use_tqdm=False)
    found = loaded(base, **settings).generate(prompts, GREEDY, lora_request=wanted, use_tqdm=False)
    assert_same(outcome(found), outcome(expected))


def test_blocks_are_shared_within_one_adapter_only(base, adapters):
    llm = loaded(base, block_size=4)
    prompt = [[7] * 17]
    params = SamplingParams(temperature=0, max_tokens=1)
    cached = [
        llm.generate(prompt, params, lora_request=request, use_tqdm=False)[0].num_cached_tokens
        for request in (None, adapters[0], adapters[1], adapters[0], None)
    ]
    assert cached == [0, 0, 0, 16, 16]


def test_a_long_prompt_goes_tile_by_tile(base, adapters):
    """Above 512 tokens the compiled form works in tiles: each has its own rows of the step."""
    settings = {**SETTINGS, "max_model_len": 256, "max_num_batched_tokens": 2048}
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 60, size).tolist() for size in (240, 30, 250, 201, 5)]
    wanted = [adapters[0], None, adapters[1], adapters[2], adapters[0]]
    few = SamplingParams(temperature=0, max_tokens=2, logprobs=1)
    found = LLM(str(base), enable_lora=True, max_loras=3, **settings).generate(
        prompts, few, lora_request=wanted, use_tqdm=False
    )
    expected = LLM(str(base), enable_lora=True, max_loras=3, enforce_eager=True, **settings).generate(
        prompts, few, lora_request=wanted, use_tqdm=False
    )
    assert_same(outcome(found), outcome(expected))


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_adapter_whose_files_vanish_ends_its_own_requests_alone(base, adapters, tmp_path, async_scheduling):
    """It waits for the only slot; when it gets one, there is nothing to read any more."""
    from mini_vllm.lora.peft_helper import CONFIG_NAME

    lost = LoRARequest("lost", 9, str(save_adapter(tmp_path / "lost", base, seed=5)))
    llm = loaded(base, max_loras=1, async_scheduling=async_scheduling)
    engine, params = llm.llm_engine, SamplingParams(temperature=0, max_tokens=6)
    alone = llm.generate([PROMPTS[0]], params, lora_request=adapters[0], use_tqdm=False)[0]
    plain = llm.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)[0]
    long = SamplingParams(temperature=0, max_tokens=12)
    for name, request, its in (("one", adapters[0], params), ("two", lost, params), ("base", None, long)):
        engine.add_request(name, PROMPTS[0], its, lora_request=request)
    (Path(lost.lora_path) / CONFIG_NAME).unlink()
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
    assert done["one"].token_ids == alone.outputs[0].token_ids
    assert done["base"].token_ids == plain.outputs[0].token_ids
    assert done["two"].finish_reason == "error" and "'lost' is not there" in done["two"].stop_reason
    again = llm.generate([PROMPTS[0]], params, lora_request=adapters[0], use_tqdm=False)[0]
    assert again.outputs[0].token_ids == alone.outputs[0].token_ids
