"""More or fewer replicas while requests are served.

    up      the coordinator hears of it, new replicas start, then the router has them; a dead one of a rank that is to
            be there is replaced
    down    the highest ranks get no new requests; those that they have end there, or go on elsewhere after a while

Upstream twin: upstream/vllm/v1/engine/core_client.py:1514 — `DPLBAsyncMPClient.scale_elastic_ep`. There it is for
mixtures on Ray with `enable_elastic_ep`: all ranks deal the experts anew, and the server answers 503 meanwhile. Here
replicas share nothing, and nothing stands still.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from mini_vllm.config.data_parallel import check_memory
from mini_vllm.config.utils import whole_number
from mini_vllm.engine.async_mp_client import AsyncMPClient
from mini_vllm.engine.coordinator_links import resized
from mini_vllm.engine.exceptions import ScalingInProgressError
from mini_vllm.engine.replicas import Inbox, merged_ready, start_together
from mini_vllm.logger import init_logger
from mini_vllm.utils.checks import shown

if TYPE_CHECKING:
    from mini_vllm.engine.dp_client import DPLBAsyncMPClient

logger = init_logger(__name__)
_LOOK_S = 0.02


async def scale_elastic_ep(client: DPLBAsyncMPClient, size: int, drain_timeout: float) -> None:
    """Have `size` replicas. Goes on to the end where the caller is cancelled.

    Args:
        drain_timeout: seconds in which replicas that leave may end the requests that they have.

    Raises:
        ScalingInProgressError: it is being done already. ValueError: so many cannot be, or not by this engine; nothing
            was changed. RuntimeError: the replicas that were to stay have died. What a new replica raised: the old
            ones serve on.
    """
    _check(client, size, drain_timeout)
    client.listen()
    client.scaling = task = asyncio.ensure_future(_scale(client, size, drain_timeout))
    await asyncio.shield(task)


def _check(client: DPLBAsyncMPClient, size: int, drain_timeout: float) -> None:
    if client.starter is None:
        raise ValueError("replicas are added and taken away by one API server: --api-server-count must be 1")
    if client.scaling is not None and not client.scaling.done():
        raise ScalingInProgressError(f"replicas are added or taken away already: ask for {shown(size)} of them later")
    whole_number("new_data_parallel_size", size, 1)
    if isinstance(drain_timeout, bool) or not isinstance(drain_timeout, int | float) or not 0 <= drain_timeout < 1e9:
        raise ValueError(f"drain_timeout must be a number of seconds, got {shown(drain_timeout)}")
    config = client.starter.setup.config
    if config.enable_expert_parallel:
        raise ValueError(
            "enable_expert_parallel deals the experts to a fixed number of ranks: new_data_parallel_size must be "
            f"{len(client.core_engines)} with it, got {shown(size)}"
        )
    check_memory(config, size)


async def _scale(client: DPLBAsyncMPClient, size: int, drain_timeout: float) -> None:
    before = len(client.core_engines)
    missing = [rank for rank in range(size) if rank >= before or rank in client.dead]
    if missing:
        await _add(client, missing, max(size, before))
    if size < before:
        await _remove(client, size, drain_timeout)
    assert client.starter is not None
    client.starter.setup.config.data_parallel_size = len(client.core_engines)
    logger.info("Scaled from %d to %d data parallel engines", before, len(client.core_engines))


async def _add(client: DPLBAsyncMPClient, ranks: list[int], size: int) -> None:
    """Start replicas of these ranks; `size`: how many there will be. The router knows them when they are ready."""
    starter, before = client.starter, len(client.core_engines)
    assert starter is not None
    inboxes = [Inbox(client.inbox, rank) for rank in ranks]

    def start() -> list[AsyncMPClient]:
        parts = zip(starter.setups(ranks, size), inboxes, strict=True)
        return start_together([partial(AsyncMPClient, setup, None, inbox) for setup, inbox in parts])

    client.link.scale(size, ranks)
    try:
        started = await asyncio.get_running_loop().run_in_executor(None, start)
    except BaseException:
        if client.dead_error is None:
            client.link.scale(before, [])
        raise
    if client.dead_error is not None:
        for each in started:
            each.shutdown()
        client.ensure_alive()
    _join(client, inboxes, started)


def _join(client: DPLBAsyncMPClient, inboxes: list[Inbox], started: list[AsyncMPClient]) -> None:
    """The router has these too, from the next request on."""
    engines = client.core_engines
    for inbox, each in zip(inboxes, started, strict=True):
        engines[inbox.rank : inbox.rank + 1], client.inboxes[inbox.rank : inbox.rank + 1] = [each], [inbox]
        client.dead.pop(inbox.rank, None)
    client.link.counts = resized(client.link.counts, len(engines))
    for inbox in inboxes:
        client.link.counts[inbox.rank] = [0, 0]
    client.replica_metrics.extend(len(engines))
    client.ready = merged_ready([engines[rank].ready for rank in client.alive])
    client.listen()


async def _remove(client: DPLBAsyncMPClient, size: int, drain_timeout: float) -> None:
    """Take the replicas from rank `size` on out of service."""
    going, end = range(size, len(client.core_engines)), time.monotonic() + drain_timeout
    client.leaving.update(going)
    try:
        if not client.staying:
            raise RuntimeError(f"no replica below rank {size} is alive: those above have to stay")
        while any(map(client.in_flight.num_in, going)) and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)
            client.ensure_alive()
            if not client.leaving:
                raise RuntimeError("all replicas that were to stay have died meanwhile: those that were to leave stay")
        for rank in reversed(going):
            await _let_go(client, rank)
    finally:
        client.leaving.clear()


async def _let_go(client: DPLBAsyncMPClient, rank: int) -> None:
    """The last replica leaves; what it has goes on in the others, of which none has noticed anything."""
    moved = client.in_flight.hand_over(rank)
    if moved:
        logger.info("Replica %d leaves: %d requests go on in %s", rank, len(moved), client.staying)
    ended = None if rank in client.dead else client.close(rank)
    del client.core_engines[rank:], client.inboxes[rank:], client.link.counts[rank:]
    client.dead.pop(rank, None)
    client.leaving.discard(rank)
    client.link.scale(rank, [])
    for request in moved:  # at once, so that none is aborted in between
        await client.add_request_async(request)
    if ended is not None:
        await ended
    client.ready = merged_ready([client.core_engines[each].ready for each in client.alive])
