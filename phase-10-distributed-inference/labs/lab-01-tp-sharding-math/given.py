"""Given: ranks that run side by side as threads, with a sum and a gather between them; and checkpoints on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray


class Checkpoint:
    """Tensors on disk: whoever wants one says which rows and columns. `taken`: numbers read, by all takes together."""

    def __init__(self, **tensors: Array) -> None:
        self._tensors, self.taken = tensors, 0
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}

    def take(self, name: str, rows: Any = slice(None), columns: Any = slice(None)) -> Array:
        """A copy of some rows and columns: slices, or lists of numbers."""
        part = self._tensors[name][rows][:, columns].copy()
        self.taken += part.size
        return part


class Rank:
    """One of `size` workers: its number, its checkpoint, and two ways to meet the others.

    Attributes:
        rank, size: which one, of how many. checkpoint: its own view of the disk.
        all_reduces, all_gathers: how often it took part in one.
    """

    def __init__(self, rank: int, size: int, checkpoint: Checkpoint, table: list, barrier: threading.Barrier) -> None:
        self.rank, self.size, self.checkpoint = rank, size, checkpoint
        self.all_reduces = self.all_gathers = 0
        self._table, self._barrier = table, barrier

    def _meet(self, what: str, part: Array) -> list[Array]:
        self._table[self.rank] = what, np.array(part)
        self._barrier.wait()
        all_parts = list(self._table)
        self._barrier.wait()
        if len({name for name, _ in all_parts}) > 1:
            raise RuntimeError(f"rank {self.rank} is in an {what}, others in {sorted({name for name, _ in all_parts})}")
        return [each for _, each in all_parts]

    def all_reduce(self, part: Array) -> Array:
        """The sum of every rank's part, on every rank."""
        self.all_reduces += 1
        return np.sum(self._meet("all_reduce", part), axis=0)

    def all_gather(self, part: Array) -> Array:
        """Every rank's part [..., n], side by side in the order of the ranks, on every rank."""
        self.all_gathers += 1
        return np.concatenate(self._meet("all_gather", part), axis=-1)


def run(program: Callable[[Rank], Any], size: int, **tensors: Array) -> tuple[list[Any], list[Rank]]:
    """What `program` gives on each of `size` ranks, and the ranks. The first error of a rank is raised here.

    A rank that waits for one that will not come is told so after a second, or at once where the other one has ended.
    """
    barrier, table = threading.Barrier(size, timeout=1.0), [None] * size
    ranks = [Rank(number, size, Checkpoint(**tensors), table, barrier) for number in range(size)]
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def work(number: int) -> None:
        try:
            results[number] = program(ranks[number])
        except BaseException as error:
            errors[number] = error
            barrier.abort()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [each for each in errors if each is not None and not isinstance(each, threading.BrokenBarrierError)]
    if real:
        raise real[0]
    if any(errors):
        counts = [rank.all_reduces + rank.all_gathers for rank in ranks]
        raise RuntimeError(f"ranks wait for each other: they took part in {counts} collectives")
    return results, ranks


def causal_attention(q: Array, k: Array, v: Array) -> Array:
    """Attention of one prompt. q [T, heads, D]; k, v [T, kv_heads, D], shared by equal groups of neighbouring heads.
    -> [T, heads, D]."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat(repeat, axis=1), v.repeat(repeat, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    scores[:, ~np.tri(len(q), dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), v)


def dense_attention(x: Array, wqkv: Array, wo: Array, num_heads: int, num_kv_heads: int) -> Array:
    """The sub-block of attention on one device. wqkv: rows of all q heads, then of all k heads, then of all v heads."""
    size = len(wqkv) // (num_heads + 2 * num_kv_heads)
    heads = (x @ wqkv.T).reshape(len(x), -1, size)
    q, k, v = np.split(heads, [num_heads, num_heads + num_kv_heads], axis=1)
    return causal_attention(q, k, v).reshape(len(x), -1) @ wo.T


def dense_gated_mlp(x: Array, w_gate_up: Array, w_down: Array) -> Array:
    """The sub-block of the MLP on one device. w_gate_up: rows of gate, then as many of up."""
    gate, up = np.split(x @ w_gate_up.T, 2, axis=-1)
    return (gate / (1 + np.exp(-gate)) * up) @ w_down.T
