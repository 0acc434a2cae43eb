"""What each of several replicas is made from, their start, and their answers as one. Upstream twin:
`vllm/v1/engine/utils.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from mini_vllm.config.expert_parallel import replicas_share_experts
from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup
from mini_vllm.engine import EngineCoreReadyResponse
from mini_vllm.engine.coordinator_links import CoordinatorAddresses
from mini_vllm.engine.core_client import EngineCoreClient
from mini_vllm.engine.utils import CoreSetup
from mini_vllm.metrics.replicas import sum_of
from mini_vllm.metrics.stats import SchedulerStats

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


def replica_setup(
    setup: CoreSetup, rank: int, coordinator: CoordinatorAddresses, group: DataParallelGroup | None
) -> CoreSetup:
    """What replica `rank` is made from."""
    config = copy.copy(setup.config)
    config.data_parallel_rank = rank
    inherited = None if group is None else group.inherited(rank)
    return replace(setup, config=config, coordinator=coordinator, dp_group=inherited)


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
