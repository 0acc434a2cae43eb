"""Lab 15-04: what the pool of KV blocks evicts, a larger and slower memory keeps.

A key stands for a block of 16 tokens and for all before it in its prompt; any value with a hash. A prompt is the list
of its keys, in order. A block without those before it is of no use to anybody.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np


def predicted_hits() -> float:
    """Your prediction, before any code runs. Twelve conversations of 8 blocks, 96 in all, are served in turn, ten
    rounds. The pool has 32 blocks, the host 88; both forget what was used the longest time ago. A request's blocks are
    copied to the host when it ends.

    Returns:
        The share of all blocks that are asked for and found in one of the two, 0 to 1. The first round finds nothing,
        so .9 is the most.
    """
    return 0.0


def break_even_tokens(
    latency_s: float, bytes_per_token: float, load_bytes_per_s: float, recompute_s_per_token: float
) -> float:
    """From how many tokens on is it quicker to load a prefix than to compute it again?

    Args:
        latency_s: what a load takes before its first byte. bytes_per_token: of keys and values.
        load_bytes_per_s: of the wire or the memory; bytes, not bits. recompute_s_per_token: of a prefill.

    Returns:
        The number of tokens at which both take as long; `math.inf` where a loaded token is not the cheaper one.

    Raises:
        ValueError: "load_bytes_per_s must be above 0, got -1".
    """
    if load_bytes_per_s <= 0:
        raise ValueError(f"load_bytes_per_s must be above 0, got {load_bytes_per_s}")
    saved = recompute_s_per_token - bytes_per_token / load_bytes_per_s
    return latency_s / saved if saved > 0 else math.inf


class HostStore:
    """Blocks in host memory, by key: a cache that forgets what was used the longest time ago.

    Of the keys that are used together, one prompt's, the first was used last: a prefix loses its tail first.

    Attributes: capacity: blocks at most. writes, reads: blocks that were copied in and out.

    Upstream: upstream/vllm/v1/kv_offload/cpu/manager.py:26 — `CPUOffloadingManager`.
    """

    def __init__(self, capacity: int, block_shape: Sequence[int]) -> None:
        """An empty store.

        Raises:
            ValueError: "capacity must be at least 0, got -1".
        """
        if capacity < 0:
            raise ValueError(f"capacity must be at least 0, got {capacity}")
        self.capacity, self.writes, self.reads = capacity, 0, 0
        self._shape = tuple(block_shape)
        self._rows: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._pins: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        """Blocks that are here."""
        return len(self._rows)

    def lookup(self, keys: Sequence[Hashable]) -> int:
        """How many of the leading keys are here. It changes nothing, not even what was used when."""
        return next((at for at, key in enumerate(keys) if key not in self._rows), len(keys))

    def store(self, keys: Sequence[Hashable], blocks: np.ndarray) -> list[Hashable]:
        """Copies blocks in; a key that is here already is used, and not written again.

        Room is made by evicting what was used the longest time ago, never a pinned key and never one of `keys`. What
        finds no room is not stored, from the tail of `keys` on.

        Args:
            keys: each once. blocks: [len(keys), *block_shape]; the caller goes on writing into them.

        Returns:
            The keys that were written, in the order of `keys`.

        Raises:
            ValueError: "store: blocks of shape (2, 16, 2) for 3 keys, expected (3, 16, 2)".
        """
        wanted = (len(keys), *self._shape)
        if np.shape(blocks) != wanted:
            raise ValueError(f"store: blocks of shape {np.shape(blocks)} for {len(keys)} keys, expected {wanted}")
        given = set(keys)
        missing = [at for at, key in enumerate(keys) if key not in self._rows]
        others = [key for key in self._rows if key not in given and not self._pins[key]]
        room = self.capacity - len(self._rows)
        new = missing[: room + len(others)]
        for key in others[: max(0, len(new) - room)]:
            del self._rows[key]
        for at in new:
            self._rows[keys[at]] = np.array(blocks[at], np.float32)
        self.writes += len(new)
        self.touch(keys)
        return [keys[at] for at in new]

    def load(self, keys: Sequence[Hashable]) -> np.ndarray:
        """Copies of blocks, float32 [len(keys), *block_shape]; the keys are used.

        Raises:
            KeyError: "block (3, 0) is not in the host store", for the first that is not; nothing is used then.
        """
        self._check(keys)
        found = np.zeros((len(keys), *self._shape), np.float32)
        for at, key in enumerate(keys):
            found[at] = self._rows[key]
        self.reads += len(keys)
        self.touch(keys)
        return found

    def touch(self, keys: Sequence[Hashable]) -> None:
        """The keys are used now, the first one last; those that are not here do not matter."""
        for key in reversed(keys):
            if key in self._rows:
                self._rows.move_to_end(key)

    def pin(self, keys: Sequence[Hashable]) -> None:
        """The keys stay until as many `unpin`.

        Raises:
            KeyError: as `load`; nothing is pinned then.
        """
        self._check(keys)
        self._pins.update(keys)

    def unpin(self, keys: Sequence[Hashable]) -> None:
        """Takes one pin of each key away.

        Raises:
            ValueError: "block (3, 0) is not pinned", for the first that is not; nothing is changed then.
        """
        for key in keys:
            if not self._pins[key]:
                raise ValueError(f"block {key} is not pinned")
        self._pins.subtract(keys)

    def _check(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            if key not in self._rows:
                raise KeyError(f"block {key} is not in the host store")


class TwoTiers:
    """A pool of blocks, as the engine has one, and a host store behind it.

    Blocks that no request holds keep what they have until somebody needs the room, the longest unused first. When a
    block goes to the host is yours to decide. In both, a prompt loses its tail first.

    Attributes: gpu: float32 [num_gpu_blocks, *block_shape], the pool. host: the `HostStore`.
    """

    def __init__(self, num_gpu_blocks: int, num_host_blocks: int, block_shape: Sequence[int]) -> None:
        """Nothing is known yet."""
        self.gpu = np.zeros((num_gpu_blocks, *block_shape), np.float32)
        self.host = HostStore(num_host_blocks, block_shape)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_gpu_blocks))  # the next to go first
        self._held: Counter[int] = Counter()  # by how many requests
        self._known: dict[Hashable, int] = {}  # key -> the block that has it
        self._key: dict[int, Hashable] = {}  # the reverse
        self._to_compute: dict[int, Hashable] = {}

    @property
    def num_free(self) -> int:
        """Blocks of the pool that no request holds."""
        return len(self._free)

    def admit(self, keys: Sequence[Hashable]) -> tuple[list[int], int, int] | None:
        """A request with this prompt begins.

        Leading blocks that the pool has are shared; those after them that the host has are loaded; the rest is to be
        computed, block by block (`write`). A block that is not written yet is nobody's hit.

        Args:
            keys: the prompt; left as it is.

        Returns:
            (ids of the pool's blocks in the order of keys, how many came from the pool, how many from the host), or
            None where the blocks are too few: then nothing has changed, neither here nor in the host.
        """
        hits = [self._known[key] for key in keys[: self._leading(keys)]]
        rest = list(keys[len(hits) :])
        if len(rest) > len(self._free) - sum(block_id in self._free for block_id in hits):
            return None
        loaded = rest[: self.host.lookup(rest)]
        self.host.pin(loaded)
        for block_id in hits:
            self._free.pop(block_id, None)
        new = self._take(len(rest))
        if loaded:
            self.gpu[new[: len(loaded)]] = self.host.load(loaded)
        self.host.unpin(loaded)
        self._held.update([*hits, *new])
        for block_id, key in zip(new, rest, strict=True):
            self._to_compute[block_id] = key
        for block_id in new[: len(loaded)]:
            self._publish(block_id)
        return hits + new, len(hits), len(loaded)

    def write(self, block_id: int, rows: np.ndarray) -> None:
        """A block was computed; from now on it is a hit for others.

        Args:
            block_id: one that `admit` gave to be computed. rows: [*block_shape].

        Raises:
            ValueError: "block 3 is not to be computed", for any other, and for one that was written.
        """
        if block_id not in self._to_compute:
            raise ValueError(f"block {block_id} is not to be computed")
        self.gpu[block_id] = rows
        self._publish(block_id)

    def finish(self, block_ids: Sequence[int]) -> None:
        """A request ends, with all its blocks written or not; blocks that others hold stay theirs.

        Args:
            block_ids: what `admit` gave; left as it is.

        Raises:
            ValueError: "block 3 is held by no request", for the first that is not; nothing is changed then.
        """
        for block_id in block_ids:
            if not self._held[block_id]:
                raise ValueError(f"block {block_id} is held by no request")
        for block_id in reversed(block_ids):
            self._held[block_id] -= 1
            if not self._held[block_id]:
                self._to_compute.pop(block_id, None)
                self._free[block_id] = None

    def _leading(self, keys: Sequence[Hashable]) -> int:
        return next((at for at, key in enumerate(keys) if key not in self._known), len(keys))

    def _publish(self, block_id: int) -> None:
        key = self._to_compute.pop(block_id)
        if key not in self._known:  # somebody else may have computed the same meanwhile
            self._known[key], self._key[block_id] = block_id, key

    def _take(self, number: int) -> list[int]:
        """So many free blocks; what they have goes to the host."""
        new = list(self._free)[:number]
        evicted = [block_id for block_id in reversed(new) if block_id in self._key]  # heads first
        self.host.store([self._key[block_id] for block_id in evicted], self.gpu[evicted])
        for block_id in evicted:
            del self._known[self._key.pop(block_id)]
        for block_id in new:
            del self._free[block_id]
        return new
