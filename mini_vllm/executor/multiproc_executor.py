"""Runs each step on all ranks: the parent (rank 0) puts the step into shared memory, forked workers pick it up.

    parent: post -> compute its shard ----- barriers inside the layers ----- last barrier -> logits of all ranks
    worker: wait -> compute its shard ----- barriers inside the layers ----- last barrier -> wait

Upstream twin: upstream/vllm/v1/executor/multiproc_executor.py:102 — `MultiprocExecutor`, whose broadcast goes through
shared memory as well. There the engine's process has no rank of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.distributed.shared_memory import Counters, shared_zeros
from mini_vllm.platforms.cpu.threads import one_blas_thread, unshared
from mini_vllm.utils.arrays import Array

_STEP, _BROKEN = 0, 1
"""Counters of the parent: the last step posted, the last one it broke off."""
_FAILED, _ASLEEP = 0, 1
"""Counters of a worker: the last step that failed there; the step it went to sleep after."""
_AWAKE_S = 2e-3
_NAP_S = 0.1
_DIED = "a worker process died; make a new engine"


def _of_worker(rank: int, counter: int) -> int:
    """Where a worker's counter stands: behind the two of the parent, rank by rank."""
    return 2 * rank + counter


class BrokenOff(Exception):
    """Raised in a worker: the parent gave up this step."""


@dataclass(slots=True)
class StepInputs:
    """A step as flat arrays of T tokens: what every rank has to know of it.

    input_ids, positions [T]; logits_indices [S]: tokens whose logits are wanted; bad_blocks [N]: to be cleaned first.
    """

    input_ids: Array
    positions: Array
    logits_indices: Array
    metadata: AttentionMetadata
    bad_blocks: Array


class StepBuffer:
    """One `StepInputs` in shared memory: lengths, then the arrays one after the other."""

    def __init__(self, max_tokens: int, max_reqs: int, max_blocks_per_req: int, num_blocks: int) -> None:
        self._lengths = shared_zeros((8,), np.int64)
        self._words = shared_zeros(
            (3 * max_tokens + 3 * max_reqs + 1 + max_reqs * max_blocks_per_req + num_blocks,), np.int64
        )

    def write(self, inputs: StepInputs) -> None:
        """Put a step in."""
        meta = inputs.metadata
        arrays = (
            inputs.input_ids, inputs.positions, meta.slot_mapping, inputs.logits_indices, inputs.bad_blocks,
            meta.query_start_loc, meta.seq_lens, meta.block_tables.ravel(),
        )  # fmt: skip
        self._lengths[:] = [len(a) for a in arrays]
        np.concatenate(arrays, out=self._words[: int(self._lengths.sum())])

    def read(self) -> StepInputs:
        """Views of the step; valid until the next `write`."""
        ids, positions, slots, wanted, bad, starts, lens, tables = np.split(self._words, np.cumsum(self._lengths))[:8]
        return StepInputs(
            ids, positions, wanted, AttentionMetadata(starts, lens, tables.reshape(len(lens), -1), slots), bad
        )


class MultiprocExecutor:
    """Computes the logits of a step on all ranks. The workers are forked at the first step, weights and all.

    Args:
        model: the whole one; every rank takes one of its `shards`.
        world_size: how many ranks, the parent included.
        compute: takes this rank's share of a step: (inputs, out); `out` [S, vocab] is to be filled in its columns.
        become: called in a worker, once, with its shard of the model.
        buffer: for the steps.
        max_rows: S at most.

    Attributes:
        model: the parent's shard. workers: the other ranks' processes.

    Raises:
        ValueError: the model cannot be shared among so many.
    """

    def __init__(
        self, model: Any, world_size: int, compute: Callable[[StepInputs, Array], object],
        become: Callable[[Any], None], buffer: StepBuffer, max_rows: int,
    ) -> None:  # fmt: skip
        self.group = TensorParallelGroup(world_size, model.max_partial_sum, model.dtype)
        self._shards = list(model.shards(self.group))
        self.model = self._shards[0]
        self.compute, self.become, self.buffer = compute, become, buffer
        self.logits = shared_zeros((max_rows, model.vocab_size), model.dtype)
        self._counters = Counters(2 * world_size)
        self._step, self._last_look, self._parent = 0, 0.0, os.getpid()
        self.group.check = self._check_workers
        self.workers: list[Any] = []
        self._connections: list[Connection] = []

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        for rank in range(1, self.group.world_size):
            ours, theirs = context.Pipe()
            inherited = [*self._connections, ours]
            worker = context.Process(
                target=self._serve, args=(rank, theirs, inherited), daemon=True, name=f"mini_vllm rank {rank}"
            )
            worker.start()
            theirs.close()
            self.workers.append(worker)
            self._connections.append(ours)
        del self._shards[1:]
        weakref.finalize(self, _close, self._connections)

    def run(self, inputs: StepInputs) -> Array:
        """Logits [S, vocab] of the step, a view of shared memory valid until the next call.

        Raises:
            RuntimeError: a worker failed or died; the message says why.
        """
        if not self.workers:
            self._fork()
        self._step += 1
        logits = self.logits[: len(inputs.logits_indices)]
        try:
            self._post(inputs)
            self.group.begin_step(self._step)
            with one_blas_thread(), unshared():
                self.compute(inputs, logits)
            self.group.barrier()
        except BaseException:
            self._counters[_BROKEN] = self._step
            raise
        return logits

    def _post(self, inputs: StepInputs) -> None:
        self.buffer.write(inputs)
        self._counters[_STEP] = self._step
        for rank, connection in enumerate(self._connections, 1):
            if self._counters[_of_worker(rank, _ASLEEP)] == self._step - 1:
                try:
                    connection.send_bytes(b"!")
                except OSError:
                    raise RuntimeError(_DIED) from None

    def _check_workers(self) -> None:
        now = time.monotonic()
        look = now > self._last_look + _NAP_S
        for rank, (worker, connection) in enumerate(zip(self.workers, self._connections, strict=True), 1):
            if self._counters[_of_worker(rank, _FAILED)] == self._step:
                while True:
                    step, error = connection.recv()
                    if step == self._step:
                        raise RuntimeError(f"a worker process failed: {error}")
            if look and not worker.is_alive():
                raise RuntimeError(_DIED)
        if look:
            self._last_look = now

    def _serve(self, rank: int, connection: Connection, inherited: list[Connection]) -> None:
        """A worker's life: pick up a step, compute, meet the others; until the parent is gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        for other in inherited:
            other.close()
        self.group.rank, self.group.check = rank, self._check_parent
        self.become(self._shards[rank])
        with one_blas_thread(), unshared(), np.errstate(invalid="ignore", over="ignore"):
            while True:
                self._wait_for_step(rank, connection)
                self._step = step = self._counters[_STEP]
                self.group.begin_step(step)
                try:
                    inputs = self.buffer.read()
                    self.compute(inputs, self.logits[: len(inputs.logits_indices)])
                    self.group.barrier()
                except BrokenOff:
                    continue
                except Exception as problem:
                    connection.send((step, f"{type(problem).__name__}: {problem}"))
                    self._counters[_of_worker(rank, _FAILED)] = step

    def _wait_for_step(self, rank: int, connection: Connection) -> None:
        """Look for the next step for two milliseconds, then sleep until the parent rings."""
        counters, start = self._counters, time.monotonic()
        while counters[_STEP] == self._step:
            if time.monotonic() < start + _AWAKE_S:
                for _ in range(100):
                    if counters[_STEP] != self._step:
                        return
                os.sched_yield()
                continue
            counters[_of_worker(rank, _ASLEEP)] = self._step
            try:  # the nap ends by itself, in case the parent looked just before the word was written
                if counters[_STEP] == self._step and connection.poll(_NAP_S):
                    connection.recv_bytes()
            except (EOFError, OSError):
                os._exit(0)

    def _check_parent(self) -> None:
        if self._counters[_BROKEN] >= self._step or self._counters[_STEP] > self._step:
            raise BrokenOff
        if os.getppid() != self._parent:
            os._exit(0)


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()
