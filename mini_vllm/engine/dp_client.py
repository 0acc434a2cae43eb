"""`AsyncLLM`'s client of several cores, replicas with the same weights: data parallelism.

Upstream twin: upstream/vllm/v1/engine/core_client.py:1169 — `DPAsyncMPClient`, and :1349 — `DPLBAsyncMPClient`.

    AsyncLLM ── DPLBAsyncMPClient ──┬── AsyncMPClient ── core, rank 0 ──┐ counts, 10 times a second
                     ▲              └── AsyncMPClient ── core, rank 1 ──┤
                     └────────────────────── coordinator ◀──────────────┘

Upstream has one pair of sockets for all cores. Here each has an `AsyncMPClient` of its own, so that the death of one is
the death of one: its requests go on in the others (`requests_in_flight.py`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mini_vllm.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from mini_vllm.engine.async_mp_client import AsyncMPClient
from mini_vllm.engine.coordinator_links import CoordinatorLink
from mini_vllm.engine.core_client import EngineCoreClient
from mini_vllm.engine.elastic_replicas import scale_elastic_ep
from mini_vllm.engine.exceptions import EngineDeadError
from mini_vllm.engine.mp_client import SILENCE_S, MPClient
from mini_vllm.engine.replicas import Inbox, ReplicaStarter, merged, merged_ready, start_together
from mini_vllm.engine.requests_in_flight import RequestsInFlight
from mini_vllm.engine.shared_core import SharedCore, SharedCores
from mini_vllm.engine.utils import CoreSetup
from mini_vllm.logger import init_logger
from mini_vllm.metrics.replicas import ReplicaMetrics

logger = init_logger(__name__)


class DPLBAsyncMPClient(EngineCoreClient):
    """Starts the replicas, sends each request to the one with the least to do, and reads from all.

    Args:
        setup: what a core is made from; `config.data_parallel_size` of them are.
        link: how this front end shares replicas that another process starts.

    Attributes:
        core_engines: the client of each replica, by rank, of the dead too. dead: why, of those that are gone.
        leaving: ranks of those that get no new requests (`elastic_replicas.py`).
        in_lockstep: they share experts, so that one without work steps with the others, and the death of one is that
            of all.
        ready: what all said of themselves: the blocks of all, and of the rest what holds for each.

    Raises:
        What a replica raised when it was made.

    Upstream: upstream/vllm/v1/engine/core_client.py:1349 — `DPLBAsyncMPClient`.
    """

    def __init__(self, setup: CoreSetup, link: SharedCores | None = None) -> None:
        size = setup.config.data_parallel_size
        self.client_index, self.client_count = (0, 1) if link is None else (link.client_index, link.client_count)
        self.dead: dict[int, EngineDeadError] = {}
        self.leaving: set[int] = set()
        self.scaling: asyncio.Task[None] | None = None
        self.dead_error: EngineDeadError | None = None
        self.inbox: asyncio.Queue[tuple[Inbox | None, Any]] = asyncio.Queue()
        self.inboxes: list[Inbox] = []
        self.in_flight = RequestsInFlight()
        self._timer: asyncio.TimerHandle | None = None
        self.starter: ReplicaStarter | None = None
        if link is None:
            self.starter = starter = ReplicaStarter(setup)
            self.in_lockstep, addresses = starter.group is not None, starter.coordinator.addresses
            self._end_coordinator = weakref.finalize(self, starter.coordinator.shutdown)
        else:
            self.in_lockstep, addresses = link.in_lockstep, link.coordinator
            self._end_coordinator = weakref.finalize(self, int)  # it is another process's
        self.core_engines = self._start(setup, link)
        self._current = self.core_engines[0]
        self.ready = merged_ready([each.ready for each in self.core_engines])
        self.eng_start_index = (size * self.client_index) // self.client_count
        self.link = CoordinatorLink(addresses, size)
        self.replica_metrics = ReplicaMetrics(
            size, None if setup.config.disable_log_stats else self.ready.max_model_len
        )

    def _start(self, setup: CoreSetup, link: SharedCores | None) -> list[AsyncMPClient]:
        """The replicas, at the same time, or the way to those that another process has started."""
        size = setup.config.data_parallel_size
        links: Sequence[SharedCore | None] = [None] * size if link is None else link.links
        self.inboxes = [Inbox(self.inbox, rank) for rank in range(size)]
        try:
            setups = self.starter.setups(range(size), size) if self.starter else [setup] * size
            parts = zip(setups, links, self.inboxes, strict=True)
            return start_together([partial(AsyncMPClient, *each) for each in parts])
        except BaseException:
            self._end_coordinator()
            raise

    @property
    def alive(self) -> list[int]:
        """Ranks of the replicas that can be asked."""
        return [rank for rank in range(len(self.core_engines)) if rank not in self.dead]

    @property
    def staying(self) -> list[int]:
        """Those of them that take requests."""
        return [rank for rank in self.alive if rank not in self.leaving]

    def listen(self) -> None:
        """Read from all replicas from now on."""
        self.ensure_alive()
        for rank in self.alive:
            if self.core_engines[rank].dead_error is None:
                self.core_engines[rank].listen()
        if self._timer is None:
            self._tick()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SILENCE_S, self._tick)
        self.link.update()

    def find_death(self) -> BaseException | None:
        """Why all are gone, as far as it is known now."""
        if self.dead_error is None:
            found = [self.core_engines[rank].find_death() for rank in self.alive]
            return found[0] if all(found) or (self.in_lockstep and any(found)) else None
        return self.dead_error

    def ensure_alive(self) -> None:
        """Raise `EngineDeadError` if all replicas are known to be gone."""
        if self.dead_error is not None:
            raise self.dead_error
        if (refusal := self.core_engines[0].resources.owner.refusal) is not None:
            raise EngineDeadError(refusal)

    def get_core_engine_for_request(self, request: EngineCoreRequest) -> int:
        """The rank of the replica that a request goes to: its own choice, or the one with the lowest score.

        A request that waits counts 4, one that runs 1. Between two publications of the coordinator a front end counts
        its own requests; it takes them for those of each other front end as well. Each front end begins to look at
        another replica, so that several of them do not all send to the first one of those that are empty.

        Upstream: upstream/vllm/v1/engine/core_client.py:1382 — `DPLBAsyncMPClient.get_core_engine_for_request`.

        Raises:
            ValueError: it chose a replica that is gone, or is leaving.
        """
        rank = request.data_parallel_rank
        if rank is not None:
            if rank in self.leaving or rank >= len(self.core_engines):
                raise ValueError(f"data_parallel_rank={rank} is leaving; there are still {self.staying}")
            if rank in self.dead:
                raise ValueError(
                    f"data_parallel_rank={rank} is gone ({self.dead[rank].reason}); there are still {self.alive}"
                )
            return rank
        counts = self.link.counts
        looked_at = [(self.eng_start_index + i) % len(counts) for i in range(len(counts))]
        takes_none = {*self.dead, *self.leaving}
        rank = min((i for i in looked_at if i not in takes_none), key=lambda i: counts[i][0] * 4 + counts[i][1])
        counts[rank][0] += self.client_count
        return rank

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Send it to a replica; where that turns out to be gone, to another."""
        self.listen()
        self.link.update()
        rank = self.get_core_engine_for_request(request)
        self.in_flight.add(request, rank)
        request.current_wave = self.link.current_wave
        if self.in_lockstep and not self.link.engines_running:
            self.link.first_request(rank)
        try:
            await self.core_engines[rank].add_request_async(request)
        except EngineDeadError as error:
            await self._lose(rank, error)
        except BaseException:
            self.in_flight.forget([request.request_id])
            raise

    async def _lose(self, rank: int, error: BaseException) -> None:
        """A replica is gone: the others go on with its requests. Raises `EngineDeadError` where it was the last one."""
        if rank in self.dead or self.dead_error is not None:
            return
        self.dead[rank] = error if isinstance(error, EngineDeadError) else EngineDeadError(str(error))
        if self.in_lockstep:
            reason = (
                f"replica {rank} is gone ({self.dead[rank].reason.rstrip('.')}), and the others share experts with it"
            )
            self._end_all(EngineDeadError(reason))
        self.close(rank)
        if not self.alive:
            self._end_all(self.dead[rank])
        self.ensure_alive()
        self.leaving &= set(self.alive) if self.staying else set()  # those that are needed stay
        moved, given_up = self.in_flight.take_from(rank)
        reason = self.dead[rank].reason.rstrip(".")
        logger.error("Replica %d is gone: %s. %d requests go on in %s", rank, reason, len(moved), self.staying)
        if given_up:
            self.inbox.put_nowait((None, given_up))
        for request in moved:
            await self.add_request_async(request)

    def close(self, rank: int) -> asyncio.Future[None]:
        """Hear nothing more of a replica, and end it, which may take long."""
        self.inboxes[rank].is_open = False
        self.core_engines[rank].stop_listening()
        return asyncio.get_running_loop().run_in_executor(None, MPClient.shutdown, self.core_engines[rank])

    async def scale_elastic_ep(self, new_data_parallel_size: int, drain_timeout: float) -> None:
        """See `elastic_replicas.scale_elastic_ep`."""
        await scale_elastic_ep(self, new_data_parallel_size, drain_timeout)

    async def get_output_async(self) -> EngineCoreOutputs:
        """Wait for a step of any replica that has something to say."""
        self.listen()
        while True:
            inbox, found = await self.inbox.get()
            self.ensure_alive()
            if inbox is None:  # what no replica has said
                return EngineCoreOutputs(found)
            if not inbox.is_open:
                continue
            if isinstance(found, BaseException):
                await self._lose(inbox.rank, found)
                continue
            self._current = self.core_engines[inbox.rank]
            outputs = self._current.hand_on(found)
            outputs.outputs = self.in_flight.note(inbox.rank, outputs.outputs)
            outputs.engine_index = inbox.rank
            return outputs

    def drop_stale(self, outputs: list[EngineCoreOutput], num_inputs: int) -> list[EngineCoreOutput]:
        """As of the replica whose outputs were handed on last."""
        return self._current.drop_stale(outputs, num_inputs)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Send each replica an abort of those that are there."""
        for rank, mine in self.in_flight.forget(request_ids).items():
            self.replica_metrics.note_aborts(rank, mine)
            if rank not in self.dead:
                try:
                    await self.core_engines[rank].abort_requests_async(mine)
                except EngineDeadError as error:
                    await self._lose(rank, error)

    def has_request(self, request_id: str) -> bool:
        """True until its last output was handed on."""
        return request_id in self.in_flight

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """Call it in all replicas. Returns what holds for all: True where it is for each, sums of counts, all lists as
        one; else what the first one said, as upstream of everything. Raises what one of them raised.

        Upstream: upstream/vllm/v1/engine/core_client.py:1412 — `DPLBAsyncMPClient.call_utility_async`.
        """
        return merged(list((await self.call_utility_of_each(method, *args)).values()))

    async def call_utility_of_each(self, method: str, *args: Any) -> dict[int, Any]:
        """What each replica that is there said to it, by rank."""
        self.listen()
        return await self._of_each(lambda client: client.call_utility_async(method, *args))

    async def _of_each(self, ask: Callable[[AsyncMPClient], Any]) -> dict[int, Any]:
        asked = self.alive
        answers = await asyncio.gather(*[ask(self.core_engines[rank]) for rank in asked], return_exceptions=True)
        found = dict(zip(asked, answers, strict=True))
        for rank, answer in found.items():
            if isinstance(answer, EngineDeadError):
                await self._lose(rank, answer)
            elif isinstance(answer, BaseException):
                raise answer
        self.ensure_alive()
        return {rank: answer for rank, answer in found.items() if not isinstance(answer, EngineDeadError)}

    async def check_health_async(self, timeout: float) -> None:
        """Ask each replica for a sign of life."""
        self.listen()
        await self._of_each(lambda client: client.check_health_async(timeout))

    def shutdown(self) -> None:
        """End all; whatever is unfinished ends with `EngineDeadError`. As `AsyncMPClient.shutdown`."""
        if self.core_engines[0].resources.owner.refusal is not None:
            return
        self._end_all(EngineDeadError("it was shut down"))

    def _end_all(self, error: EngineDeadError) -> None:
        self.dead_error = self.dead_error or error
        for client in self.core_engines:
            client.stop_listening()
        for client in self.core_engines:  # all at once, and without threads: the garbage collector may be the caller
            if client.resources.manager is not None:
                client.resources.manager.ask_to_end()
        for client in self.core_engines:
            MPClient.shutdown(client)
        if self._timer is not None:
            self._timer.cancel()
        self.link.close()
        self._end_coordinator()
