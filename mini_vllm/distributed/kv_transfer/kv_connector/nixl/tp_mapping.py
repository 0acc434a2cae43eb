"""Which ranks of P a rank of D reads from, and which heads of each.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/nixl/tp_mapping.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReadSpec:
    """One read: heads [remote_head, remote_head + num_heads) of a rank of P become heads from local_head on here.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/tp_mapping.py:23 — `ReadSpec`.
    """

    remote_rank: int
    local_head: int
    remote_head: int
    num_heads: int


@dataclass(frozen=True)
class TransferTopology:
    """The ranks of this engine, and what they have of the KV heads.

    Attributes:
        total_num_kv_heads: of all ranks; ranks beyond that number have copies. is_mla: every rank has everything.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/utils.py:393 — `TransferTopology`.
    """

    tp_rank: int
    tp_size: int
    total_num_kv_heads: int
    is_mla: bool = False

    def tp_ratio(self, remote_tp_size: int) -> int:
        """How many ranks here read from one rank there; below zero: minus the ranks there that one here reads from.

        Raises:
            ValueError: neither number of ranks divides the other.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/utils.py:498 — `TransferTopology.tp_ratio`.
        """
        if self.tp_size % remote_tp_size == 0:
            return self.tp_size // remote_tp_size
        if remote_tp_size % self.tp_size == 0:
            return -(remote_tp_size // self.tp_size)
        raise ValueError(
            f"tensor_parallel_size of one engine must be a multiple of the other's: {self.tp_size} here, "
            f"{remote_tp_size} there"
        )

    def handshake_target_ranks(self, remote_tp_size: int) -> list[int]:
        """The ranks there that this rank speaks to: those that it reads from, and those that wait for its word.

        Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/utils.py:540 —
        `TransferTopology.handshake_target_ranks`.
        """
        ratio = self.tp_ratio(remote_tp_size)
        if ratio > 0:
            return [self.tp_rank // ratio]
        return [self.tp_rank * -ratio + i for i in range(-ratio)]

    def consumers_per_producer(self, consumer_tp_size: int) -> int:
        """How many ranks of D will say that they have read from this rank of P."""
        return max(-self.tp_ratio(consumer_tp_size), 1)


def heads_of_rank(rank: int, tp_size: int, total_num_kv_heads: int) -> tuple[int, int]:
    """(first, number) of the KV heads of a rank; ranks beyond the heads have one each, some the same."""
    return rank * total_num_kv_heads // tp_size, max(total_num_kv_heads // tp_size, 1)


def compute_tp_mapping(topology: TransferTopology, remote_tp_size: int) -> list[ReadSpec]:
    """The reads that bring this rank all its heads, each once.

    Raises:
        ValueError: as `TransferTopology.tp_ratio`.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/tp_mapping.py:65 — `compute_tp_mapping`.
    """
    targets = topology.handshake_target_ranks(remote_tp_size)
    if topology.is_mla:
        return [ReadSpec(targets[0], 0, 0, 1)]
    total = topology.total_num_kv_heads
    first, count = heads_of_rank(topology.tp_rank, topology.tp_size, total)
    specs, missing = [], first
    for rank in targets:
        start, num = heads_of_rank(rank, remote_tp_size, total)
        stop = min(start + num, first + count)
        if start <= missing < stop:
            specs.append(ReadSpec(rank, missing - first, missing - start, stop - missing))
            missing = stop
    assert missing == first + count, f"heads from {missing} on are nowhere: {topology}, {remote_tp_size} ranks there"
    return specs
