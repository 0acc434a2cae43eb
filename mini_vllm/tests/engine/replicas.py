"""What the tests of several replicas share."""

import asyncio
import contextlib

from mini_vllm import LLM, AsyncLLM, SamplingParams
from mini_vllm.tests.engine.async_helpers import PATIENCE_S, collect
from mini_vllm.tests.engine.trapped import Trapped

PROMPTS = [f"a prompt {at}, and words behind it" for at in range(6)]


def with_replicas(body, model=None, size=2, **kwargs):
    """Run `body(llm)` with so many replicas, with a limit that only a hang reaches."""

    async def main():
        wanted = {"num_blocks": 256, "dtype": "float64", **kwargs}
        llm = AsyncLLM(
            Trapped() if model is None else model, enable_multiprocessing=True, data_parallel_size=size, **wanted
        )
        try:
            return await asyncio.wait_for(body(llm), PATIENCE_S)
        finally:
            llm.shutdown()

    return asyncio.run(main())


def alone(prompts, params, model=None, how=None, **kwargs):
    """What one core in this process gives for each prompt, asked one by one. how: further arguments of `generate`."""
    wanted = {"num_blocks": 256, "dtype": "float64", **kwargs}
    llm = LLM(Trapped() if model is None else model, **wanted)
    return [llm.generate(prompt, params, use_tqdm=False, **(how or {}))[0] for prompt in prompts]


def slowed(**kwargs):
    """Parameters of streams that last long enough to lose a replica meanwhile."""
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 24, **kwargs})


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)


async def streams_of(llm, prompts, params, during, **kwargs):
    """All outputs of each prompt, each asked of the replica of its turn; `during()` once all of them have tokens."""
    size = llm.config.data_parallel_size
    tasks = [
        asyncio.create_task(collect(llm, f"r{at}", prompt, params, data_parallel_rank=at % size, **kwargs))
        for at, prompt in enumerate(prompts)
    ]
    states = llm.output_processor.request_states
    with contextlib.suppress(asyncio.CancelledError):
        await until(lambda: len(states) >= len(prompts) and all(state.token_ids for state in states.values()))
        await during()
    return await asyncio.gather(*tasks, return_exceptions=True)
