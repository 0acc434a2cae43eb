"""What the tests of `AsyncLLM` share."""

import asyncio

import pytest

from mini_vllm import AsyncLLM
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.trapped import Trapped

BOTH = pytest.mark.parametrize("elsewhere", [False, True], ids=["in-process", "own-process"])
BOTH_SLOWLY = pytest.mark.parametrize(
    "elsewhere", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in-process", "own-process"]
)
LONG = 1500
PATIENCE_S = 300


def in_loop(elsewhere, body, model=None, **kwargs):
    """Run `body(llm)` in an event loop, with a limit that only a hang reaches."""

    async def main():
        llm = AsyncLLM(Trapped() if model is None else model, enable_multiprocessing=elsewhere, **kwargs)
        try:
            return await asyncio.wait_for(body(llm), PATIENCE_S)
        finally:
            llm.shutdown()

    return asyncio.run(main())


async def collect(llm, request_id, prompt="hello", params=None, **kwargs):
    return [output async for output in llm.generate(prompt, params or greedy(), request_id, **kwargs)]


async def idle(llm):
    """Wait until the core has forgotten everything: then its prefix cache can be reset."""
    while not await llm.reset_prefix_cache():
        await asyncio.sleep(0.005)
    stats = await llm.get_stats()
    assert not llm.output_processor.request_states
    return stats
