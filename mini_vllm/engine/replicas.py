"""What each of several replicas is made from, their start, and their answers as one. Upstream twin:
`vllm/v1/engine/utils.py`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mini_vllm.config.expert_parallel import replicas_share_experts
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup
from mini_vllm.engine import EngineCoreOutputs, EngineCoreReadyResponse
from mini_vllm.engine.coordinator import DPCoordinator
from mini_vllm.engine.core_client import EngineCoreClient
from mini_vllm.engine.utils import CoreSetup
from mini_vllm.metrics.replicas import sum_of
from mini_vllm.metrics.stats import SchedulerStats

if TYPE_CHECKING:
    from mini_vllm.engine.core_actors import Place

Client = TypeVar("Client", bound=EngineCoreClient)


def make_dp_group(setup: CoreSetup) -> DataParallelGroup | None:
    """The ranks of all replicas where these share experts, else None. To be kept until the replicas have started.

    Raises:
        ValueError: with what shared experts are not served.
    """
    config = setup.config
    if not replicas_share_experts(config, setup.model.hf_config, config.data_parallel_size):
        return None
    seconds = float(config.execute_model_timeout_seconds)
    return DataParallelGroup(config.data_parallel_size, config.tensor_parallel_size, timeout=seconds)


class Inbox:
    """Puts what comes from one replica into the queue of all, with itself.

    Attributes:
        is_open: False where nothing from there counts any more: another replica may have the rank by then.
    """

    def __init__(self, queue: asyncio.Queue[tuple[Inbox | None, Any]], rank: int) -> None:
        self._queue, self.rank, self.is_open = queue, rank, True

    def put_nowait(self, found: EngineCoreOutputs | BaseException) -> None:
        """As a queue's."""
        self._queue.put_nowait((self, found))


class ReplicaStarter:
    """Has what replicas need before they start, and says what each is made from. For the process that starts them.

    Attributes:
        group: their ranks where they share experts, else None. coordinator: of all. host: this node's address, as the
            replicas reach it.

    Raises:
        ValueError: with what replicas are not served; Ray is not installed.
    """

    def __init__(self, setup: CoreSetup) -> None:
        self.setup, self.host = setup, "127.0.0.1"
        self.group = make_dp_group(setup)
        if setup.config.data_parallel_backend == "ray":
            from mini_vllm.engine.core_actors import connect

            self.host = connect(setup.config)
        self.coordinator = DPCoordinator(setup.config.data_parallel_size, self.host)

    def setups(self, ranks: Sequence[int], size: int) -> list[CoreSetup]:
        """What replicas of these ranks are made from, `size` being that of all; those of Ray have their places.

        Raises:
            ValueError, RuntimeError: the cluster has no room for them.
        """
        config = copy.copy(self.setup.config)
        config.data_parallel_size = size
        places: Sequence[Place | None] = [None] * len(ranks)
        if config.data_parallel_backend == "ray":
            from mini_vllm.engine.core_actors import create_dp_placement_groups

            places = create_dp_placement_groups(config, len(ranks))
        return [self._setup(copy.copy(config), rank, place) for rank, place in zip(ranks, places, strict=True)]

    def _setup(self, config: EngineConfig, rank: int, place: Place | None) -> CoreSetup:
        config.data_parallel_rank = rank
        group = None if self.group is None else self.group.inherited(rank)
        where = self.coordinator.addresses
        return replace(self.setup, config=config, coordinator=where, dp_group=group, host=self.host, place=place)


def start_together(makes: Sequence[Callable[[], Client]]) -> list[Client]:
    """Clients whose cores start at the same time. Where one fails, the others end, and its error is raised."""
    with ThreadPoolExecutor(len(makes), "start") as threads:
        started = [threads.submit(make) for make in makes]
    made = [each.result() for each in started if each.exception() is None]
    for each in started:
        if (error := each.exception()) is not None:
            for client in made:
                client.shutdown()
            raise error
    return made


def merged_ready(all_ready: list[EngineCoreReadyResponse]) -> EngineCoreReadyResponse:
    """What they say of themselves as one.

    Upstream: upstream/vllm/v1/engine/core_client.py:711 — "Sum values from all engines in DP case.".
    """
    blocks = sum(each.num_gpu_blocks for each in all_ready)
    return replace(all_ready[0], num_gpu_blocks=blocks, fits_any=all(each.fits_any for each in all_ready))


def merged(answers: list[Any]) -> Any:
    """What several replicas answered as one: see `DPLBAsyncMPClient.call_utility_async`."""
    first = answers[0]
    if isinstance(first, bool):
        return all(answers)
    if isinstance(first, list):  # events of a profile
        return [each for answer in answers for each in answer]
    return sum_of(answers) if isinstance(first, SchedulerStats) else first
