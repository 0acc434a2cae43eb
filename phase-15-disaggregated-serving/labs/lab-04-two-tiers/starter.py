"""Lab 15-04: what the pool of KV blocks evicts, a larger and slower memory keeps.

A key stands for a block of 16 tokens and for all before it in its prompt; any value with a hash. A prompt is the list
of its keys, in order. A block without those before it is of no use to anybody.
"""

from __future__ import annotations

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
    raise NotImplementedError("the share of blocks found, as you predict it")


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
    raise NotImplementedError("the number of tokens from which on a load is the quicker one")


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
        raise NotImplementedError("an empty store")

    def __len__(self) -> int:
        """Blocks that are here."""
        raise NotImplementedError("how many blocks are here")

    def lookup(self, keys: Sequence[Hashable]) -> int:
        """How many of the leading keys are here. It changes nothing, not even what was used when."""
        raise NotImplementedError("how many of the leading keys are here")

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
        raise NotImplementedError("the keys that were written")

    def load(self, keys: Sequence[Hashable]) -> np.ndarray:
        """Copies of blocks, float32 [len(keys), *block_shape]; the keys are used.

        Raises:
            KeyError: "block (3, 0) is not in the host store", for the first that is not; nothing is used then.
        """
        raise NotImplementedError("copies of the blocks")

    def touch(self, keys: Sequence[Hashable]) -> None:
        """The keys are used now, the first one last; those that are not here do not matter."""
        raise NotImplementedError("the keys are used, the first one last")

    def pin(self, keys: Sequence[Hashable]) -> None:
        """The keys stay until as many `unpin`.

        Raises:
            KeyError: as `load`; nothing is pinned then.
        """
        raise NotImplementedError("the keys stay")

    def unpin(self, keys: Sequence[Hashable]) -> None:
        """Takes one pin of each key away.

        Raises:
            ValueError: "block (3, 0) is not pinned", for the first that is not; nothing is changed then.
        """
        raise NotImplementedError("the keys have a pin less each")


class TwoTiers:
    """A pool of blocks, as the engine has one, and a host store behind it.

    Blocks that no request holds keep what they have until somebody needs the room, the longest unused first. When a
    block goes to the host is yours to decide. In both, a prompt loses its tail first.

    Attributes: gpu: float32 [num_gpu_blocks, *block_shape], the pool. host: the `HostStore`.
    """

    def __init__(self, num_gpu_blocks: int, num_host_blocks: int, block_shape: Sequence[int]) -> None:
        """Nothing is known yet."""
        raise NotImplementedError("an empty pool with an empty host store behind it")

    @property
    def num_free(self) -> int:
        """Blocks of the pool that no request holds."""
        raise NotImplementedError("how many blocks no request holds")

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
        raise NotImplementedError("blocks for the prompt, and where their contents came from; or None")

    def write(self, block_id: int, rows: np.ndarray) -> None:
        """A block was computed; from now on it is a hit for others.

        Args:
            block_id: one that `admit` gave to be computed. rows: [*block_shape].

        Raises:
            ValueError: "block 3 is not to be computed", for any other, and for one that was written.
        """
        raise NotImplementedError("the block holds these rows, and is a hit for others")

    def finish(self, block_ids: Sequence[int]) -> None:
        """A request ends, with all its blocks written or not; blocks that others hold stay theirs.

        Args:
            block_ids: what `admit` gave; left as it is.

        Raises:
            ValueError: "block 3 is held by no request", for the first that is not; nothing is changed then.
        """
        raise NotImplementedError("the request holds its blocks no more")
