"""The ranks of a pipeline as their processes share them: who meets whom, and the links between the stages.

    stage 0    rank 0 ==meet== rank 1
                 |               |          hidden states of a step, in shared memory
    stage 1    rank 2 ==meet== rank 3

A link is a ring of places. Whoever sends waits for a free place, whoever receives for a full one, so that a stage may
be some steps ahead of the next.

Upstream twin: `vllm/distributed/parallel_state.py` (`GroupCoordinator.send_tensor_dict`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.distributed.parallel_state import ParallelState, TensorParallelGroup, initialize_model_parallel
from mini_vllm.distributed.shared_memory import Counters, SharedMemory
from mini_vllm.utils.arrays import Array

_SENT, _RECEIVED = 0, 1
PLACES = 2
"""Steps on their way between two stages."""


@dataclass(slots=True)
class IntermediateTensors:
    """Arrays of a step by name, each [T, …]: here "hidden_states" [T, H] alone, where upstream's layers hand on a
    residual beside them.

    Upstream: upstream/vllm/sequence.py:18 — `IntermediateTensors`.
    """

    tensors: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]


class StageLink:
    """From one rank to the one with the same place in the next stage.

    Args:
        num_tokens: of a step, at most; what is never used takes no memory. hidden_size, dtype: of hidden states.
        num_processes: that run at the same time.
    """

    def __init__(self, num_tokens: int, hidden_size: int, dtype: Any, num_processes: int) -> None:
        self.shape, self.dtype = (PLACES, num_tokens, hidden_size), np.dtype(dtype)
        self._counters = Counters(2, num_processes)
        self._memory = SharedMemory(int(np.prod(self.shape)) * self.dtype.itemsize)
        self._open()

    def _open(self) -> None:
        self._places = self._memory.array(self.shape, self.dtype)

    def __getstate__(self) -> Any:
        return self.shape, self.dtype, self._counters, self._memory

    def __setstate__(self, state: Any) -> None:
        self.shape, self.dtype, self._counters, self._memory = state
        self._open()

    def send_tensor_dict(self, tensors: IntermediateTensors, check: Callable[[], object]) -> None:
        """Hand a step on. check: called while there is no place; may raise.

        Upstream: upstream/vllm/distributed/parallel_state.py:833 — `GroupCoordinator.send_tensor_dict`.
        """
        hidden, number = tensors["hidden_states"], self._counters[_SENT]
        self._counters.wait(_RECEIVED, number - PLACES + 1, check)
        self._places[number % PLACES, : len(hidden)] = hidden
        self._counters[_SENT] = number + 1

    def recv_tensor_dict(self, num_tokens: int, check: Callable[[], object]) -> IntermediateTensors:
        """The next step, of so many tokens. check: called while it is not there; may raise.

        Upstream: upstream/vllm/distributed/parallel_state.py:928 — `GroupCoordinator.recv_tensor_dict`.
        """
        number = self._counters[_RECEIVED]
        self._counters.wait(_SENT, number + 1, check)
        hidden = self._places[number % PLACES, :num_tokens].copy()
        self._counters[_RECEIVED] = number + 1
        return IntermediateTensors({"hidden_states": hidden})


class PipelineRanks:
    """All ranks of an engine with stages: what `TensorParallelGroup` is where there is one stage.

    Args:
        pipeline_parallel_size, tensor_parallel_size: stages, and ranks of each.
        num_elements: of the partial sums between two meetings, at most.
        num_tokens, hidden_size, dtype: see `StageLink`.

    Attributes:
        rank: of this process; each sets its own. tp: the ranks of its stage that share every layer; None: it is alone.
        check: called while waiting; raises where waiting has become senseless.
    """

    steps_overlap = True

    def __init__(
        self, pipeline_parallel_size: int, tensor_parallel_size: int, *, num_elements: int, num_tokens: int,
        hidden_size: int, dtype: Any,
    ) -> None:  # fmt: skip
        self.pp_size, self.tp_size = pipeline_parallel_size, tensor_parallel_size
        self.world_size = pipeline_parallel_size * tensor_parallel_size
        self._groups: list[TensorParallelGroup | None] = [None] * self.pp_size
        if self.tp_size > 1:
            self._groups = [TensorParallelGroup(self.tp_size, num_elements, dtype) for _ in range(self.pp_size)]
        count = self.world_size - self.tp_size
        self._links = [StageLink(num_tokens, hidden_size, dtype, self.world_size) for _ in range(count)]
        self._rank = 0
        self._check: Callable[[], object] = _nothing

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._rank

    @rank.setter
    def rank(self, rank: int) -> None:
        self._rank = rank
        if self.tp is not None:
            self.tp.rank = rank % self.tp_size

    @property
    def tp(self) -> TensorParallelGroup | None:
        """The group of this rank's stage."""
        return self._groups[self._rank // self.tp_size]

    @property
    def state(self) -> ParallelState:
        """The groups of this rank."""
        return initialize_model_parallel(self._rank, self.tp_size, self.pp_size)

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
        """See `TensorParallelGroup.begin_step`."""
        if self.tp is not None:
            self.tp.begin_step(step)

    def num_meetings(self, rank: int) -> tuple[int, int]:
        """See `TensorParallelGroup.num_meetings`; (0, 0) where a stage is one rank."""
        group = self._groups[rank // self.tp_size]
        return (0, 0) if group is None else group.num_meetings(rank % self.tp_size)

    def send(self, tensors: IntermediateTensors) -> None:
        """To the next stage."""
        self._links[self._rank].send_tensor_dict(tensors, self._check)

    def receive(self, num_tokens: int) -> IntermediateTensors:
        """From the stage before."""
        return self._links[self._rank - self.tp_size].recv_tensor_dict(num_tokens, self._check)


def _nothing() -> None:
    """Nobody waits for ever."""
