"""Several async streams as one. Upstream twin: `vllm/utils/async_utils.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

T = TypeVar("T")


async def merge_async_iterators(*iterators: AsyncGenerator[T, None]) -> AsyncGenerator[tuple[int, T], None]:
    """(number of the iterator, item), as items come. All iterators are closed when this one is.

    Upstream: upstream/vllm/utils/async_utils.py:272 — `merge_async_iterators`.
    """
    if len(iterators) == 1:
        try:
            async for item in iterators[0]:
                yield 0, item
        finally:
            await iterators[0].aclose()
        return
    waiting: dict[asyncio.Task[Any], int] = {_next(iterator): at for at, iterator in enumerate(iterators)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                at = waiting.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                waiting[_next(iterators[at])] = at
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
