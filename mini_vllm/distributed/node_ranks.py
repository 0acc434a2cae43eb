"""The ranks of an engine on several machines, as one of them holds them.

    node 0    stage 0    rank 0 ==meet== rank 1        in shared memory
                           |               |           hidden states of a step, over TCP
    node 1    stage 1    rank 2 ==meet== rank 3        in shared memory

A stage that lies on two machines meets over TCP, or over gloo where the environment variable
MINI_VLLM_DIST_BACKEND=gloo says so.

Upstream twin: `vllm/distributed/parallel_state.py` (`init_distributed_environment`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mini_vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from mini_vllm.distributed.device_communicators.tcp_communicator import TcpCommunicator
from mini_vllm.distributed.parallel_state import ParallelState, RankGroup, initialize_model_parallel
from mini_vllm.distributed.pipeline_ranks import IntermediateTensors
from mini_vllm.distributed.tcp_links import TcpLinks

BACKENDS = ("tcp", "gloo")


def dist_backend() -> str:
    """What carries the sums of ranks that share no memory.

    Raises:
        ValueError: the environment variable MINI_VLLM_DIST_BACKEND names another one.
    """
    name = os.environ.get("MINI_VLLM_DIST_BACKEND", "tcp")
    if name not in BACKENDS:
        raise ValueError(f"MINI_VLLM_DIST_BACKEND must be one of {', '.join(BACKENDS)}, got {name!r}")
    return name


def make_tp_group(
    links: TcpLinks, tp: RankGroup, num_elements: int, dtype: Any, mm_encoder_tp_mode: str,
    in_memory: DeviceCommunicatorBase | None = None,
) -> DeviceCommunicatorBase | None:  # fmt: skip
    """The group of a rank's stage; None where it is alone. in_memory: the one in shared memory, where there is one."""
    if tp.world_size == 1:
        return None
    if in_memory is not None:
        in_memory.rank = tp.rank_in_group
        return in_memory
    if dist_backend() == "gloo":
        from mini_vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

        return CpuCommunicator(links, tp.ranks, num_elements, dtype, mm_encoder_tp_mode)
    return TcpCommunicator(links, tp.ranks, num_elements, dtype, mm_encoder_tp_mode)


class NodeRanks:
    """What `PipelineRanks` is on one machine.

    Args:
        links: of this process. tensor_parallel_size, pipeline_parallel_size: ranks of a stage, and stages.
        tp: see `make_tp_group`. hidden_size, dtype: of hidden states.

    Attributes:
        rank: of this process. check: called while waiting; raises where waiting has become senseless.
    """

    steps_overlap = True

    def __init__(
        self, links: TcpLinks, tensor_parallel_size: int, pipeline_parallel_size: int,
        tp: DeviceCommunicatorBase | None, hidden_size: int, dtype: Any,
    ) -> None:  # fmt: skip
        self.links, self.tp, self.rank = links, tp, links.rank
        self.tp_size, self.pp_size = tensor_parallel_size, pipeline_parallel_size
        self.world_size = tensor_parallel_size * pipeline_parallel_size
        self.hidden_size, self.dtype = hidden_size, np.dtype(dtype)
        self._check: Callable[[], object] = bool

    @property
    def state(self) -> ParallelState:
        """The groups of this rank."""
        return initialize_model_parallel(self.rank, self.tp_size, self.pp_size)

    @property
    def broken(self) -> str | None:
        """Why nothing goes any more."""
        return self.links.broken

    @property
    def check(self) -> Callable[[], object]:
        """See the class."""
        return self._check

    @check.setter
    def check(self, check: Callable[[], object]) -> None:
        self._check = check
        if self.tp is not None:
            self.tp.check = check

    def begin_step(self, step: int) -> None:
        """See `DeviceCommunicatorBase.begin_step`."""
        if self.tp is not None:
            self.tp.begin_step(step)

    def num_meetings(self, rank: int) -> tuple[int, int]:
        """See `DeviceCommunicatorBase.num_meetings`; (0, 0) where nothing is known of a rank."""
        same_stage = rank // self.tp_size == self.rank // self.tp_size
        return (0, 0) if self.tp is None or not same_stage else self.tp.num_meetings(rank % self.tp_size)

    def send(self, tensors: IntermediateTensors) -> None:
        """To the next stage. Returns when the socket has taken it: a stage may be some steps ahead of the next."""
        hidden = np.ascontiguousarray(tensors["hidden_states"])
        self.links.transfer({self.rank + self.tp_size: hidden}, {}, self._check)

    def receive(self, num_tokens: int) -> IntermediateTensors:
        """From the stage before."""
        hidden = np.empty((num_tokens, self.hidden_size), self.dtype)
        self.links.transfer({}, {self.rank - self.tp_size: hidden}, self._check)
        return IntermediateTensors({"hidden_states": hidden})


def groups_in_memory(
    node_ranks: tuple[int, ...], tensor_parallel_size: int, make: Callable[[], DeviceCommunicatorBase]
) -> Mapping[int, DeviceCommunicatorBase]:
    """By stage: a group for each whose ranks are all on one machine."""
    size = tensor_parallel_size
    stages = {rank // size for rank in node_ranks} if size > 1 else set()
    whole = [stage for stage in sorted(stages) if {*range(stage * size, stage * size + size)} <= {*node_ranks}]
    return {stage: make() for stage in whole}
