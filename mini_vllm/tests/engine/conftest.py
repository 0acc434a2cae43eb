"""Engines with a core in a process of its own that tests of a module share; where each needs its own: `in_loop`."""

import asyncio
import contextlib
import functools

import pytest

from mini_vllm.tests.engine.trapped import Trapped


@contextlib.contextmanager
def _running(slow):
    """`run(body)` in a loop that goes on with its engine from one call to the next."""
    from mini_vllm import AsyncLLM
    from mini_vllm.tests.engine.async_helpers import PATIENCE_S, idle

    loop = asyncio.new_event_loop()

    async def start():
        return AsyncLLM(Trapped(slow), enable_multiprocessing=True)

    async def between(body):
        try:
            return await asyncio.wait_for(body(llm), PATIENCE_S)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task(), llm.output_handler}:  # none where it passes
                task.cancel()
            await asyncio.wait_for(idle(llm), PATIENCE_S)

    llm = loop.run_until_complete(start())
    yield lambda body: loop.run_until_complete(between(body))
    llm.shutdown()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@pytest.fixture(scope="module")
def _fast_core():
    with _running(slow=False) as run:
        yield run


@pytest.fixture(scope="module")
def _slow_core():
    with _running(slow=True) as run:
        yield run


@pytest.fixture
def run(request, elsewhere):
    """`run(body)`, as `in_loop`; the body leaves the engine as it was and sets no trap ("~" slows a model for ever)."""
    from mini_vllm.tests.engine.async_helpers import in_loop

    return request.getfixturevalue("_fast_core") if elsewhere else functools.partial(in_loop, False)


@pytest.fixture
def run_slowly(request, elsewhere):
    """The same with steps of 20 ms: a core must not come to the end while the test has to wait for the processor."""
    from mini_vllm.tests.engine.async_helpers import in_loop

    if elsewhere:
        return request.getfixturevalue("_slow_core")
    return lambda body: in_loop(False, body, Trapped(slow=True))
