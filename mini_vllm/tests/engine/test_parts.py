"""The engine takes its parts from `EngineParts`, and they are ours unless somebody says otherwise."""

import pytest

from mini_vllm import LLM, LLMEngine, SamplingParams
from mini_vllm.attention.backends.dense import DenseBackend
from mini_vllm.attention.backends.registry import get_attention_backend
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_utils import hash_block_tokens
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.utils import check_stop
from mini_vllm.engine.parts import EngineParts, parts_from_labs
from mini_vllm.sample.sampler import Sampler

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def test_ours_by_default():
    engine = LLMEngine(num_blocks=16)
    assert type(engine.scheduler) is Scheduler and engine.scheduler.check_stop is check_stop
    assert type(engine.sampler) is Sampler and type(engine.scheduler.kv_cache_manager.block_pool) is BlockPool
    assert type(LLMEngine(num_blocks=16, async_scheduling=True).scheduler) is AsyncScheduler
    assert parts_from_labs(None) == EngineParts(on_start=parts_from_labs(None).on_start)


def test_every_part_can_be_another():
    class Pool(BlockPool):
        pass

    class MySampler(Sampler):
        pass

    class MyScheduler(Scheduler):
        pass

    hashed, started = [], []

    def my_hash(parent, tokens, extra=None):
        hashed.append(tuple(tokens))
        return hash_block_tokens(parent, tokens, extra)

    def after_three(request, max_model_len):
        return check_stop(request, request.num_prompt_tokens + 3)

    parts = EngineParts(
        block_pool=Pool,
        hash_block_tokens=my_hash,
        scheduler=MyScheduler,
        check_stop=after_three,
        sampler=MySampler,
        on_start=started.append,
    )
    llm = LLM(num_blocks=16, block_size=4, with_labs=parts)
    (output,) = llm.generate("hello you", GREEDY)
    assert len(output.outputs[0].token_ids) == 3 and output.outputs[0].finish_reason == "length"
    engine = llm.llm_engine
    kinds = type(engine.scheduler), type(engine.sampler), type(engine.scheduler.kv_cache_manager.block_pool)
    assert kinds == (MyScheduler, MySampler, Pool)
    assert hashed[:2] == [tuple(b"hell"), tuple(b"o yo")] and started == [engine.engine_core]
    assert llm.generate("hello you", GREEDY)[0].outputs[0].token_ids == output.outputs[0].token_ids


def test_a_backend_is_a_name_or_a_class():
    assert get_attention_backend("dense") is DenseBackend and get_attention_backend(DenseBackend) is DenseBackend
    with pytest.raises(ValueError, match="attention_backend must be one of"):
        get_attention_backend("no such backend")
