"""Which offloaded block goes for another: the interface. Upstream twin: `vllm/v1/kv_offload/cpu/policies/base.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from mini_vllm.kv_offload.base import OffloadKey


@dataclass(slots=True, eq=False)
class BlockStatus:
    """Where an offloaded block is, and how many read it; `ref_cnt` -1: it is still being written.

    Upstream: upstream/vllm/v1/kv_offload/cpu/policies/base.py:10 — `BlockStatus`.
    """

    block_id: int
    ref_cnt: int = -1

    @property
    def is_ready(self) -> bool:
        """Whether it can be read."""
        return self.ref_cnt >= 0


class CachePolicy(ABC):
    """Holds the blocks, because the order in which they are held is the decision.

    Args:
        cache_capacity: how many blocks there are places for.

    Upstream: upstream/vllm/v1/kv_offload/cpu/policies/base.py:36 — `CachePolicy`.
    """

    @abstractmethod
    def __init__(self, cache_capacity: int) -> None: ...

    @abstractmethod
    def get(self, key: OffloadKey) -> BlockStatus | None:
        """The block; None where it is not held."""

    @abstractmethod
    def insert(self, key: OffloadKey, block: BlockStatus) -> None:
        """Hold a new block."""

    @abstractmethod
    def remove(self, key: OffloadKey) -> None:
        """Let a block go whose store failed."""

    @abstractmethod
    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """These blocks of one prefix were of use: the last of them goes before the first, which the others need."""

    @abstractmethod
    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        """Let exactly n blocks go that nobody reads or writes, and that are not protected; None, and nothing done,
        where there are fewer."""

    @abstractmethod
    def clear(self) -> None:
        """Let all go, whoever reads them."""
