"""The rows of a step, shared out among processes over one KV cache in shared memory (`worker_processes=2`).

Python's lock lets threads share the large products of a step, but not its hundreds of small calls; processes share all
of it. Each takes some of the requests of a step through the whole model, and they meet once a step. The weights are the
parent's, seen through fork; the KV arrays are shared, so that any process may compute any request in any step.

Upstream's `MultiprocExecutor` (upstream/vllm/v1/executor/multiproc_executor.py:102) also broadcasts a step to processes
and collects one result; there each process drives a GPU and holds a shard of the model.
"""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import signal
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.threads import one_blas_thread, unshared

Array = np.ndarray[Any, Any]
Compute = Callable[["RowShare"], "Array | None"]


_DIED = "a worker process died; make a new engine"


def is_supported() -> bool:
    """Processes are forked, which is safe on Linux only."""
    return sys.platform == "linux" and hasattr(os, "fork")


def shared_zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros that forked processes share."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=dtype, count=int(np.prod(shape))).reshape(shape)


@dataclass(slots=True)
class RowShare:
    """Consecutive requests of a step: their tokens, the tokens whose logits are wanted, what attention has to know."""

    input_ids: Array
    positions: Array
    logits_indices: Array
    metadata: AttentionMetadata


def share_rows(inputs: Any, num_shares: int) -> list[RowShare]:
    """Cut a step (`ModelInputs`) into shares of about equal numbers of tokens, or into one where shares would depend
    on each other.

    Within a layer every key and value of a step is written before any is read; between processes nobody sees to that. A
    request that found, by prefix caching, a block which another one fills in this very step must be in its share.
    """
    meta = inputs.metadata
    wanted = meta.num_tokens * np.arange(1, num_shares) / num_shares
    cuts = np.unique(np.clip(np.searchsorted(meta.query_start_loc, wanted), 1, meta.num_reqs - 1))
    bounds = [0, *cuts.tolist(), meta.num_reqs] if meta.num_reqs > 1 else [0, meta.num_reqs]
    shares = []
    for first, last in itertools.pairwise(bounds):
        starts = meta.query_start_loc[first : last + 1]
        tokens = slice(int(starts[0]), int(starts[-1]))
        chosen = (inputs.sampled_rows >= first) & (inputs.sampled_rows < last)
        shares.append(
            RowShare(
                inputs.input_ids[tokens],
                inputs.positions[tokens],
                inputs.logits_indices[chosen] - tokens.start,
                AttentionMetadata(
                    starts - tokens.start,
                    meta.seq_lens[first:last],
                    meta.block_tables[first:last],
                    meta.slot_mapping[tokens],
                ),
            )
        )
    return shares


def depend_on_each_other(shares: list[RowShare], block_size: int) -> bool:
    """True when a share reads a block, as context, that another one writes in this step.

    Not in a step of decodes alone: each writes to the last block of its request, which nobody else holds.
    """
    if all(share.metadata.num_tokens == share.metadata.num_reqs for share in shares):
        return False
    written = [np.unique(share.metadata.slot_mapping // block_size) for share in shares]
    for i, share in enumerate(shares):
        meta = share.metadata
        context_blocks = -(-(meta.seq_lens - meta.query_lens) // block_size)
        read = meta.block_tables[np.arange(meta.block_tables.shape[1]) < context_blocks[:, None]]
        others = [blocks for j, blocks in enumerate(written) if j != i]
        if len(read) and others and np.isin(read, np.concatenate(others)).any():
            return True
    return False


class WorkerProcesses:
    """Computes the logits of a step together with the parent.

    Args:
        compute: takes a share through the model: logits [tokens wanted, vocab], or None where none are wanted.
        num_processes: the calling one included.
        max_rows, vocab_size, dtype: of the logits of a step.
    """

    def __init__(self, compute: Compute, num_processes: int, max_rows: int, vocab_size: int, dtype: Any) -> None:
        self.compute, self.num_processes = compute, num_processes
        self.logits = shared_zeros((max_rows, vocab_size), dtype)
        self._step = 0
        self._connections: list[Connection] = []
        context = multiprocessing.get_context("fork")
        for _ in range(num_processes - 1):
            ours, theirs = context.Pipe()
            inherited = [*self._connections, ours]
            context.Process(target=self._serve, args=(theirs, inherited), daemon=True, name="mini_vllm worker").start()
            theirs.close()
            self._connections.append(ours)
        weakref.finalize(self, _close, self._connections)

    def run(self, shares: list[RowShare]) -> Array:
        """Logits of all shares, in order: [tokens wanted, vocab], a view of shared memory valid until the next call.

        Raises:
            RuntimeError: a worker failed or died; the message says why.
        """
        self._step += 1
        first_rows = np.cumsum([0, *(len(share.logits_indices) for share in shares)]).tolist()
        busy = self._connections[: len(shares) - 1]
        for connection, share, row in zip(busy, shares[1:], first_rows[1:], strict=False):
            try:
                connection.send((self._step, share, row))
            except OSError:
                raise RuntimeError(_DIED) from None
        with one_blas_thread(), unshared():
            self._store(self.compute(shares[0]), 0)
        for connection in busy:
            self._wait(connection)
        return self.logits[: first_rows[-1]]

    def _wait(self, connection: Connection) -> None:
        """Take the worker's answer to this step; answers to steps that were interrupted are dropped."""
        while True:
            try:
                step, error = connection.recv()
            except (EOFError, OSError):
                raise RuntimeError(_DIED) from None
            if step == self._step:
                break
        if error:
            raise RuntimeError(f"a worker process failed: {error}")

    def _store(self, logits: Array | None, row: int) -> None:
        if logits is not None:
            self.logits[row : row + len(logits)] = logits

    def _serve(self, connection: Connection, inherited: list[Connection]) -> None:
        """The worker's life: a share in, its logits into shared memory, a word back; until the parent is gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        for other in inherited:
            other.close()
        with one_blas_thread(), unshared(), np.errstate(invalid="ignore", over="ignore"):
            while True:
                try:
                    step, share, row = connection.recv()
                except (EOFError, OSError):
                    os._exit(0)
                error = ""
                try:
                    self._store(self.compute(share), row)
                except Exception as problem:
                    error = f"{type(problem).__name__}: {problem}"
                connection.send((step, error))


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()
