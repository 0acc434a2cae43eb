"""Several async streams as one. Upstream twin: `vllm/utils/async_utils.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
AT_ONCE = 16
"""Parts of one request that are worked on before other requests get their turn."""


async def in_turns(items: Iterable[T], size: int = AT_ONCE) -> AsyncGenerator[T, None]:
    """The items; after every `size` of them all other tasks of the event loop get a turn."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


async def merge_async_iterators(*iterators: AsyncGenerator[T, None]) -> AsyncGenerator[tuple[int, T], None]:
    """(number of the iterator, item), as items come. All iterators are closed when this one is. What an item costs does
    not grow with the number of iterators, as it does upstream, which waits for all of them anew.

    Upstream: upstream/vllm/utils/async_utils.py:272 — `merge_async_iterators`.
    """
    if len(iterators) == 1:
        try:
            async for item in iterators[0]:
                yield 0, item
        finally:
            await iterators[0].aclose()
        return
    waiting: dict[asyncio.Task[Any], int] = {}
    done: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()

    def begin(at: int) -> None:
        task = _next(iterators[at])
        waiting[task] = at
        task.add_done_callback(done.put_nowait)

    try:
        async for at in in_turns(range(len(iterators))):
            begin(at)
        while waiting:
            task = await done.get()
            at = waiting.pop(task)
            try:
                item = task.result()
            except StopAsyncIteration:
                continue
            begin(at)
            yield at, item
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for iterator in iterators:
            await iterator.aclose()


def _next(iterator: AsyncGenerator[Any, None]) -> asyncio.Task[Any]:
    async def step() -> Any:
        return await anext(iterator)

    return asyncio.ensure_future(step())
