"""Two devices share a model: each has its part of the weights, and a process of its own."""

from __future__ import annotations

import pytest

from mini_vllm import LLM, SamplingParams


def test_two_ranks_do_the_work_of_one(model: str) -> None:
    pytest.importorskip("mini_vllm.distributed.shared_memory")
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    told = []
    for ranks in (1, 2):
        llm = LLM(model, device="refacc", tensor_parallel_size=ranks, kv_cache_memory_bytes=64 << 20)
        try:
            tokens = llm.generate("What is a KV block?", params, use_tqdm=False)[0].outputs[0].token_ids
            told.append((tokens, llm.llm_engine.collective_rpc("get_steps")))
            reports = llm.llm_engine.collective_rpc("get_report")
            assert all("equal in every step" in text for text in reports) and len(reports) == ranks
        finally:
            llm.llm_engine.shutdown()
    (tokens, (alone,)), (same_tokens, shared) = told
    assert tokens == same_tokens
    for step, *parts in zip(alone, *shared, strict=True):
        for kind, name in (("projections", "flops"), ("projections", "weight_bytes"), ("attention", "kv_read")):
            counts = [getattr(part.kinds[kind], name) for part in parts]
            assert counts[0] == counts[1] and sum(counts) == getattr(step.kinds[kind], name)
