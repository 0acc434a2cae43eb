"""What each of several replicas is made from, and their start. Upstream twin: `vllm/v1/engine/utils.py`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from mini_vllm.config.parallel import replicas_share_experts
from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup
from mini_vllm.engine.coordinator_links import CoordinatorAddresses
from mini_vllm.engine.core_client import EngineCoreClient
from mini_vllm.engine.utils import CoreSetup

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
