"""Rows of tokens to the ranks that hold their experts, and the results back: two exchanges for each layer of experts.

    dispatch -> the experts of this rank, over all rows that came -> combine

    allgather_reducescatter    every replica gets every row; every replica's partial sums are added row by row
    deepep_high_throughput     a row goes to those replicas alone that hold one of its experts, and comes back from them

Ranks of tensor parallelism have the same rows: each sends along its own column of replicas, and the sum over ranks that
ends every layer adds the columns. (Upstream deals the rows of a step to them first, where a model knows how:
`use_sequence_parallel_moe` in upstream/vllm/config/parallel.py.)

Upstream twin: `vllm/distributed/device_communicators/all2all.py`. On a CPU it has the first alone, and takes it with a
warning where another is asked for: upstream/vllm/distributed/device_communicators/cpu_communicator.py:51 —
"if self.use_all2all:".
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup
from mini_vllm.utils.arrays import Array

Dispatched = tuple[Array, Array, Array]
"""Rows [n, hidden], weights [n, top_k] and ids [n, top_k] of their experts."""


class All2AllManagerBase(ABC):
    """Args:
        group: the ranks of all replicas, this process one of them.

    Upstream: upstream/vllm/distributed/device_communicators/base_device_communicator.py:30 — `All2AllManagerBase`.
    """

    def __init__(self, group: DataParallelGroup) -> None:
        self.group = group

    @property
    def world_size(self) -> int:
        """Ranks that share the experts."""
        return self.group.world_size

    @property
    def rank(self) -> int:
        """This one of them."""
        return self.group.ep_rank

    @abstractmethod
    def dispatch(self, hidden_states: Array, topk_weights: Array, topk_ids: Array, rank_of: Array) -> Dispatched:
        """What this rank's experts are to compute: rows of all replicas, in the order of the replicas.

        Args:
            hidden_states, topk_weights, topk_ids: of this replica's rows, see `Dispatched`; n may be 0.
            rank_of: [num_experts], the rank that holds each expert.
        """

    @abstractmethod
    def combine(self, hidden_states: Array) -> Array:
        """Partial sums of the rows of `dispatch` -> the sums of this replica's rows, over this rank's column."""


class AgRsAll2AllManager(All2AllManagerBase):
    """All-gather, then reduce-scatter: whatever the router chose, the same bytes.

    Upstream: upstream/vllm/distributed/device_communicators/all2all.py:41 — `AgRsAll2AllManager`.
    """

    def dispatch(self, hidden_states: Array, topk_weights: Array, topk_ids: Array, rank_of: Array) -> Dispatched:
        """As the base."""
        (hidden_states, topk_weights, topk_ids), self._sizes = self.group.all_gatherv(
            [hidden_states, topk_weights, topk_ids]
        )
        return hidden_states, topk_weights, topk_ids

    def combine(self, hidden_states: Array) -> Array:
        """As the base."""
        return self.group.reduce_scatterv(hidden_states, self._sizes)


class DeepEPHTAll2AllManager(All2AllManagerBase):
    """Each row to the ranks of its experts, once to each: what DeepEP's high-throughput kernels do between GPUs, here
    through shared memory.

    Upstream: upstream/vllm/distributed/device_communicators/all2all.py:197 — `DeepEPHTAll2AllManager`; the exchange is
    in upstream/vllm/model_executor/layers/fused_moe/prepare_finalize/deepep_ht.py.
    """

    def dispatch(self, hidden_states: Array, topk_weights: Array, topk_ids: Array, rank_of: Array) -> Dispatched:
        """As the base."""
        group = self.group
        replica_of = np.where(rank_of % group.tp_size == group.tp_rank, rank_of // group.tp_size, -1)
        replicas, given = replica_of[topk_ids], (hidden_states, topk_weights, topk_ids)
        self._wanted = [np.flatnonzero((replicas == dp).any(axis=1)) for dp in range(group.dp_size)]
        self._num_rows = len(hidden_states)
        found = group.all_to_allv([[array[rows] for array in given] for rows in self._wanted])
        self._sizes = [len(of_replica[0]) for of_replica in found]
        hidden_states, topk_weights, topk_ids = (np.concatenate(each) for each in zip(*found, strict=True))
        return hidden_states, topk_weights, topk_ids

    def combine(self, hidden_states: Array) -> Array:
        """As the base; added in the order of the replicas."""
        parts = np.split(hidden_states, np.cumsum(self._sizes)[:-1])
        out = np.zeros((self._num_rows, hidden_states.shape[1]), hidden_states.dtype)
        for rows, (part,) in zip(self._wanted, self.group.all_to_allv([[part] for part in parts]), strict=True):
            out[rows] += part
        return out


_MANAGERS: dict[str, type[All2AllManagerBase]] = {
    "allgather_reducescatter": AgRsAll2AllManager,
    "deepep_high_throughput": DeepEPHTAll2AllManager,
}


def make_all2all_manager(backend: str, group: DataParallelGroup) -> All2AllManagerBase:
    """The manager of this rank; backend: one of `ALL2ALL_BACKENDS` (`config/parallel.py`), which has been checked.

    Upstream: upstream/vllm/distributed/device_communicators/cuda_communicator.py:122 —
    "if self.all2all_backend in (".
    """
    return _MANAGERS[backend](group)
