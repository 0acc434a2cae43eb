"""Items that have been made ready, by their hash: the same picture in another prompt is not resized again, and not
sent again to a core in a process of its own.

    front end   MultiModalProcessorOnlyCache    the items: nothing is made ready twice
                MultiModalProcessorSenderCache  names and sizes: what the core has, is not sent
    core        MultiModalReceiverCache         the items: what was not sent, is here

The last two go through the same names in the same order, and so evict alike: the sender knows what the receiver has
without asking. Upstream has the first or the second, and the second decides when an item is made ready: a request that
is refused after that, or overtaken by another, leaves the two sides with different contents. Here it decides when the
request is written to the socket, so that both sides see the same requests in the same order.

The encoder's outputs are kept behind all this, by the scheduler's decision (`core/encoder_cache_manager.py`), and keys
and values of whole blocks by the prefix cache. Upstream twin: `vllm/multimodal/cache.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from mini_vllm.multimodal.inputs import MultiModalFeatureSpec
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


class MultiModalProcessorSenderCache:
    """What the core's `MultiModalReceiverCache` has: names and sizes alone.

    Args:
        mm_processor_cache_gb: GiB of the items there.

    Upstream: upstream/vllm/multimodal/cache.py:379 — `MultiModalProcessorSenderCache`.
    """

    def __init__(self, mm_processor_cache_gb: float) -> None:
        self._cache: LRUCache[str, int] = LRUCache(int(mm_processor_cache_gb * GIB), getsizeof=lambda size: size)
        self._stats = CacheInfo()

    @contextmanager
    def sending(self, features: Sequence[MultiModalFeatureSpec]) -> Iterator[list[MultiModalFeatureSpec]]:
        """The features as they go to the core: without `data` where it has them. Where the block raises, nothing has
        been sent.

        Upstream: upstream/vllm/multimodal/cache.py:410 — `MultiModalProcessorSenderCache.get_and_update_item`.
        """
        before = self._cache.copy()
        try:
            _touch(self._cache, features)
            yield [self._without_known(feature) for feature in features]
        except BaseException:
            self._cache = before
            raise

    def _without_known(self, feature: MultiModalFeatureSpec) -> MultiModalFeatureSpec:
        name = _name_of(feature)
        self._stats.total += 1
        if name in self._cache:
            self._stats.hits += 1
            self._cache.touch(name)
            return replace(feature, data=None)
        self._cache[name] = get_item_size(feature.data)
        return feature

    def clear_cache(self) -> None:
        """Forget all, as the receiver must."""
        self._cache.clear()

    def make_stats(self) -> CacheInfo:
        """How many items were to be sent, and how many of them were not."""
        return CacheInfo(self._stats.hits, self._stats.total)


class MultiModalReceiverCache:
    """The items, in the core's process.

    Args:
        mm_processor_cache_gb: GiB of all items.

    Upstream: upstream/vllm/multimodal/cache.py:630 — `MultiModalReceiverCache`.
    """

    def __init__(self, mm_processor_cache_gb: float) -> None:
        self._cache: LRUCache[str, Mapping[str, Any]] = LRUCache(
            int(mm_processor_cache_gb * GIB), getsizeof=get_item_size
        )

    def get_and_update_features(self, features: Sequence[MultiModalFeatureSpec]) -> list[MultiModalFeatureSpec]:
        """The features with their `data`.

        Raises:
            RuntimeError: an item was left out that is not here: the two sides have been told different things.

        Upstream: upstream/vllm/multimodal/cache.py:589 — `BaseMultiModalReceiverCache.get_and_update_features`.
        """
        _touch(self._cache, features)
        return [replace(feature, data=self._get_and_update_item(feature)) for feature in features]

    def _get_and_update_item(self, feature: MultiModalFeatureSpec) -> Mapping[str, Any]:
        name = _name_of(feature)
        if name in self._cache:
            return self._cache[name]
        if feature.data is None:
            raise RuntimeError(f"Expected a cached item for mm_hash={name!r}")
        self._cache[name] = feature.data
        return feature.data

    def clear_cache(self) -> None:
        """Forget all."""
        self._cache.clear()


def _name_of(feature: MultiModalFeatureSpec) -> str:
    """Of the data alone, whatever adapter is asked with it."""
    return feature.mm_hash or feature.identifier


def _touch(cache: LRUCache[str, Any], features: Sequence[MultiModalFeatureSpec]) -> None:
    """All of a request count as used before any of them takes the room of another."""
    for feature in features:
        if _name_of(feature) in cache:
            cache.touch(_name_of(feature))


def mm_cache_size(model: Any) -> float:
    """GiB that a core's process and its front end are to keep; 0 where the model takes no media."""
    multimodal = getattr(model, "multimodal", None)  # a finished model has no settings of its own
    return 0 if multimodal is None else multimodal.mm_processor_cache_gb
