"""Capture and replay in their simplest form: a list of operations, a recording for each shape, launches counted.

An operation ("kernel") is a function from one array to one array, and one launch. What hardware bakes into a recording,
the addresses, is here the arrays themselves. Upstream twins: `vllm/compilation/cuda_graph.py` (`CUDAGraphWrapper`) and,
for the pieces, `vllm/compilation/breakable_cudagraph.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mini_vllm.utils.arrays import Array

Op = Callable[[Array], Array]


@dataclass
class LaunchCounter:
    """How many times the CPU has told the device to do something."""

    n: int = 0

    def bump(self, k: int = 1) -> None:
        """Count `k` launches."""
        self.n += k

    def reset(self) -> None:
        """Start again from zero."""
        self.n = 0


def run_eager(ops: Sequence[Op], x: Array, launches: LaunchCounter) -> Array:
    """The operations one after the other, one launch each, on every call."""
    for op in ops:
        x = op(x)
        launches.bump()
    return x


@dataclass(frozen=True)
class Kernel:
    """One recorded launch: the operation, the array that it reads, the array that it writes."""

    op: Op
    source: Array
    target: Array


@dataclass(frozen=True)
class GraphEntry:
    """One recording: where inputs go, the launches, where the result is.

    Upstream: upstream/vllm/compilation/cuda_graph.py:128 — `CUDAGraphEntry`.
    """

    static_input: Array
    kernels: tuple[Kernel, ...]
    output: Array


class GraphRunner:
    """Records its operations at the first call of a shape and dtype, and replays them at each later one.

    The result is the entry's output array, the same object every time: the next replay overwrites it.

    Attributes:
        graphs: (shape, dtype) -> recording.
        capturing: while False, a shape without a recording is an error (upstream closes the window after the start).
    """

    def __init__(self, ops: Sequence[Op], launches: LaunchCounter) -> None:
        self.ops, self.launches = tuple(ops), launches
        self.graphs: dict[tuple[tuple[int, ...], str], GraphEntry] = {}
        self.capturing = True

    @property
    def num_captured(self) -> int:
        """Recordings."""
        return len(self.graphs)

    def __call__(self, x: Array) -> Array:
        """Capture or replay, and the output.

        Raises:
            RuntimeError: there is no recording for this shape, and capture is closed.
        """
        key = x.shape, x.dtype.name
        entry = self.graphs.get(key)
        if entry is not None:
            return self.replay(entry, x)
        if not self.capturing:
            raise RuntimeError(f"capture is closed, and there is no graph for shape {x.shape} of {x.dtype.name}")
        self.graphs[key] = entry = self.capture(x)
        return entry.output

    def capture(self, x: Array) -> GraphEntry:
        """Run the operations on a copy of `x`, one launch each, and note what each read and wrote."""
        array = static_input = x.copy()
        kernels = []
        for op in self.ops:
            result = np.array(op(array))  # an array of our own, even where the operation hands its input back
            self.launches.bump()
            kernels.append(Kernel(op, array, result))
            array = result
        return GraphEntry(static_input, tuple(kernels), array)

    def replay(self, entry: GraphEntry, x: Array) -> Array:
        """Copy `x` into the recorded input and do all recorded work, for one launch."""
        np.copyto(entry.static_input, x)
        self.launches.bump()
        for kernel in entry.kernels:
            np.copyto(kernel.target, kernel.op(kernel.source))
        return entry.output


class PiecewiseGraphRunner:
    """Runs of operations that can be captured become graphs; the others between them stay eager.

    Args:
        is_capturable: of an operation's index. In a model, attention is where it says False.

    Attributes:
        pieces: the runs in order, each a `GraphRunner` or a list of operations.

    Upstream: upstream/vllm/compilation/backends.py:548 — `split_graph`.
    """

    def __init__(self, ops: Sequence[Op], is_capturable: Callable[[int], bool], launches: LaunchCounter) -> None:
        """Group neighbouring operations of the same kind into pieces."""
        self.launches = launches
        self.pieces: list[GraphRunner | list[Op]] = []
        for capturable, indices in itertools.groupby(range(len(ops)), is_capturable):
            run = [ops[i] for i in indices]
            self.pieces.append(GraphRunner(run, launches) if capturable else run)

    @property
    def num_graphs(self) -> int:
        """Pieces that are captured: graphs for each shape."""
        return sum(isinstance(piece, GraphRunner) for piece in self.pieces)

    def __call__(self, x: Array) -> Array:
        """All pieces in order; the result may be a graph's own output array."""
        for piece in self.pieces:
            x = piece(x) if isinstance(piece, GraphRunner) else run_eager(piece, x, self.launches)
        return x
