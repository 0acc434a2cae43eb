"""One graph for each batch descriptor, around something that can be run: capture once, replay for ever.

Upstream twin: `vllm/compilation/cuda_graph.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.compilation.cudagraph_dispatcher import BatchDescriptor
from mini_vllm.config.compilation import CUDAGraphMode
from mini_vllm.utils.arrays import Array

Runnable = Callable[..., Array]


def address(array: Array) -> int:
    """Where the array begins in memory."""
    return int(array.__array_interface__["data"][0])


@dataclass
class CUDAGraphEntry:
    """A graph: the persistent arrays that it reads, and the part of the pool that it writes.

    Upstream: upstream/vllm/compilation/cuda_graph.py:128 — `CUDAGraphEntry`.
    """

    batch_descriptor: BatchDescriptor
    inputs: tuple[Array, ...]
    input_addresses: tuple[int, ...]
    output: Array


class GraphPool:
    """The memory in which graphs leave their results, shared by all: it is as large as the largest needs.

    Graphs are captured largest first, so that the later ones fit into what is there. Because they share it, the result
    of one is gone when the next is replayed.
    Upstream: upstream/vllm/compilation/cuda_graph.py:200 — calls `get_global_graph_pool`.
    """

    def __init__(self) -> None:
        self._rows: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return 0 if self._rows is None else self._rows.nbytes

    def take(self, like: Array) -> Array:
        """Room for an array like this one [T, H].

        Raises:
            RuntimeError: it is larger than the first that was asked for.
        """
        if self._rows is None:
            self._rows = np.empty_like(like, order="C")
        if like.shape[0] > len(self._rows) or like.shape[1:] != self._rows.shape[1:] or like.dtype != self._rows.dtype:
            raise RuntimeError(f"the graph pool holds {self._rows.shape}, not {like.shape}: capture largest first")
        return self._rows[: len(like)]


class CUDAGraphWrapper:
    """Runs `runnable`, and replays a graph of it where the step's runtime mode is the wrapper's own.

    The wrapper keeps no inputs and copies none: whoever calls it has put them where they were at capture. It trusts the
    descriptor that it is given. In place of a recording, which numpy does not have, a replay calls the runnable on the
    arrays of the capture, whatever the caller holds in hand.

    Args:
        runnable: arrays -> hidden states [T, H], perhaps in memory of its own.
        runtime_mode: PIECEWISE or FULL.
        pool: where results lie.
        debug: compare the addresses of the inputs at every replay (upstream: `VLLM_LOGGING_LEVEL=DEBUG`).

    Attributes:
        entries: the graphs. capturing: while False, a descriptor without a graph is an error.

    Upstream: upstream/vllm/compilation/cuda_graph.py:145 — `CUDAGraphWrapper`.
    """

    def __init__(self, runnable: Runnable, runtime_mode: CUDAGraphMode, pool: GraphPool, debug: bool = False) -> None:
        assert runtime_mode in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)
        self.runnable, self.runtime_mode, self.pool, self.debug = runnable, runtime_mode, pool, debug
        self.entries: dict[BatchDescriptor, CUDAGraphEntry] = {}
        self.capturing = False

    def __call__(self, mode: CUDAGraphMode, key: BatchDescriptor, *inputs: Array, eager: Any = None) -> Array:
        """Run, capture or replay: hidden states [T, H]; of a replay, the graph's own output.

        Args:
            mode: of this step. Another than the wrapper's: `runnable` is simply called.
            eager: what the pieces between the graphs need anew in every step (the attention); None in a full graph.

        Raises:
            RuntimeError: capture is closed and there is no graph; or, with `debug`, the inputs lie elsewhere.

        Upstream: upstream/vllm/compilation/cuda_graph.py:233 — `CUDAGraphWrapper.__call__`.
        """
        if mode != self.runtime_mode:
            return self.runnable(*inputs, eager)
        entry = self.entries.get(key)
        if entry is None:
            return self._capture(key, inputs, eager)
        if self.debug and tuple(map(address, inputs)) != entry.input_addresses:
            raise RuntimeError(
                f"Input addresses for cudagraphs are different during replay. Expected {entry.input_addresses}, "
                f"got {tuple(map(address, inputs))}"
            )
        np.copyto(entry.output, self.runnable(*entry.inputs, eager))
        return entry.output

    def _capture(self, key: BatchDescriptor, inputs: tuple[Array, ...], eager: Any) -> Array:
        """Upstream refuses in the same case: upstream/vllm/compilation/cuda_graph.py:277 — calls
        `validate_cudagraph_capturing_enabled`."""
        if not self.capturing:
            raise RuntimeError(f"CUDA graph capturing detected at an inappropriate time: no {self.runtime_mode} {key}")
        hidden = self.runnable(*inputs, eager)
        output = self.pool.take(hidden)
        np.copyto(output, hidden)
        self.entries[key] = CUDAGraphEntry(key, inputs, tuple(map(address, inputs)), output)
        return output
