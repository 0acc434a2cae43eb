"""A mapping that remembers who was used last. Upstream twin: `vllm/utils/cache.py`, over the library cachetools."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """At most `capacity` entries; where one more comes, the one goes that was used least recently.

    Args:
        capacity: entries, at least 1; or what their sizes add up to at most.
        on_remove: called with the key of each entry that goes.
        getsizeof: the size of a value; by default each counts as 1. One larger than the capacity is not kept.

    Upstream: upstream/vllm/utils/cache.py:51 — `LRUCache`.
    """

    def __init__(
        self,
        capacity: float,
        on_remove: Callable[[K], object] = lambda key: None,
        getsizeof: Callable[[V], int] = lambda value: 1,
    ) -> None:
        self.capacity, self.pinned_items, self.currsize = capacity, set[K](), 0
        self._on_remove, self._getsizeof = on_remove, getsizeof
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """From the least recently used to the last."""
        return iter(self._entries)

    def __getitem__(self, key: K) -> V:
        """The value; the entry counts as used."""
        self._entries.move_to_end(key)
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        size = self._getsizeof(value)
        if size > self.capacity:
            return
        if key in self._entries:
            self.currsize -= self._getsizeof(self._entries.pop(key))
        while self.currsize + size > self.capacity:
            self.remove_oldest()
        self.currsize += size
        self._entries[key] = value

    def __delitem__(self, key: K) -> None:
        self.currsize -= self._getsizeof(self._entries.pop(key))
        self.pinned_items.discard(key)
        self._on_remove(key)

    def copy(self) -> LRUCache[K, V]:
        """The same entries in the same order, in a cache that goes its own way."""
        other = LRUCache(self.capacity, self._on_remove, self._getsizeof)
        other.pinned_items, other.currsize, other._entries = set(self.pinned_items), self.currsize, self._entries.copy()
        return other

    def touch(self, key: K) -> None:
        """Count an entry as used. Upstream: upstream/vllm/utils/cache.py:120 — `LRUCache.touch`."""
        self._entries.move_to_end(key)

    def pin(self, key: K) -> None:
        """Keep an entry whatever comes. Raises ValueError where there is none.

        Upstream: upstream/vllm/utils/cache.py:162 — `LRUCache.pin`.
        """
        if key not in self._entries:
            raise ValueError(f"cannot pin {key!r}: it is not in the cache")
        self.pinned_items.add(key)

    def remove_oldest(self) -> None:
        """Remove the entry that was used least recently and is not pinned. Raises RuntimeError where all are.

        Upstream: upstream/vllm/utils/cache.py:181 — `LRUCache.remove_oldest`.
        """
        if not self._entries:
            return
        for key in self._entries:
            if key not in self.pinned_items:
                del self[key]
                return
        raise RuntimeError(f"all {len(self)} entries are pinned: none can be removed")

    def clear(self) -> None:
        """Remove all, the pinned ones too."""
        for key in list(self._entries):
            del self[key]
