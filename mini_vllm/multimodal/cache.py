"""Items that have been made ready, by their hash: the same picture in another prompt is not resized again.

This cache lies in the front end, before the engine; the encoder's outputs are kept behind it, by the scheduler's
decision (`core/encoder_cache_manager.py`), and keys and values of whole blocks by the prefix cache. Upstream twin:
`vllm/multimodal/cache.py`, which also keeps the core from getting an item twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from mini_vllm.utils.cache import LRUCache

GIB = 1 << 30


@dataclass
class CacheInfo:
    """Upstream: upstream/vllm/utils/cache.py:33 — `CacheInfo`."""

    hits: int = 0
    total: int = 0


class MultiModalProcessorOnlyCache:
    """Args:
        mm_processor_cache_gb: GiB of all items.

    Upstream: upstream/vllm/multimodal/cache.py:326 — `MultiModalProcessorOnlyCache`.
    """

    def __init__(self, mm_processor_cache_gb: float) -> None:
        self._cache: LRUCache[str, dict[str, Any]] = LRUCache(int(mm_processor_cache_gb * GIB), getsizeof=get_item_size)
        self._lock = Lock()
        self._stats = CacheInfo()

    def is_cached_item(self, mm_hash: str) -> bool:
        """Whether it is there.

        Upstream: upstream/vllm/multimodal/cache.py:348 — `MultiModalProcessorOnlyCache.is_cached_item`.
        """
        with self._lock:
            return mm_hash in self._cache

    def get_and_update_item(self, mm_hash: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The item; made, and kept, where it was not there.

        Upstream: upstream/vllm/multimodal/cache.py:352 — `MultiModalProcessorOnlyCache.get_and_update_item`.
        """
        with self._lock:
            self._stats.total += 1
            if mm_hash in self._cache:
                self._stats.hits += 1
                return self._cache[mm_hash]
        item = make()
        with self._lock:
            self._cache[mm_hash] = item
        return item

    def clear_cache(self) -> None:
        """Forget all. Upstream: upstream/vllm/multimodal/cache.py:371 — `MultiModalProcessorOnlyCache.clear_cache`."""
        with self._lock:
            self._cache.clear()

    def make_stats(self) -> CacheInfo:
        """How often an item was asked for, and how often it was there.

        Upstream: upstream/vllm/multimodal/cache.py:375 — `MultiModalProcessorOnlyCache.make_stats`.
        """
        with self._lock:
            return CacheInfo(self._stats.hits, self._stats.total)


def get_item_size(item: Mapping[str, Any]) -> int:
    """Bytes of an item's arrays. Upstream: upstream/vllm/multimodal/cache.py:120 — `MultiModalCache.get_item_size`."""
    return sum(value.nbytes for value in item.values() if isinstance(value, np.ndarray))
