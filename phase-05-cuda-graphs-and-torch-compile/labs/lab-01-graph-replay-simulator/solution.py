"""Lab 05-01: record a list of kernels once per shape, replay it with one launch.

A launch is counted, not timed. A kernel ("op") is a function from one array to one array. What real hardware bakes
into a recording, the addresses, is here the arrays themselves: a replay may only touch the arrays of its recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Op = Callable[[np.ndarray], np.ndarray]
Key = tuple[tuple[int, ...], str]


@dataclass
class LaunchCounter:
    """How many times the CPU has told the GPU to do something: `n`."""

    n: int = 0

    def bump(self, k: int = 1) -> None:
        """Count `k` more launches."""
        self.n += k

    def reset(self) -> None:
        """Start again from zero."""
        self.n = 0


@dataclass(frozen=True)
class Kernel:
    """One recorded launch: which op, the array it reads, the array it writes. Given."""

    op: Op
    source: np.ndarray
    target: np.ndarray


@dataclass(frozen=True)
class GraphEntry:
    """One recording: the arrays to write inputs to and to read results from, and the launches between them. Given."""

    static_input: np.ndarray
    kernels: tuple[Kernel, ...]
    output: np.ndarray


def run_eager(ops: Sequence[Op], x: np.ndarray, launches: LaunchCounter) -> np.ndarray:
    """The result of all ops in their order, each on the result of the one before. On every call a launch for each op.

    x itself for no ops; x is never written.
    """
    for op in ops:
        launches.bump()
        x = op(x)
    return x


class GraphRunner:
    """Runs a fixed list of ops: the first call of a key records it, each later one replays the recording.

    Attributes:
        graphs: the recordings, one per key.
        capturing: while False, a key without a recording is an error, as upstream once the start is over.
    """

    def __init__(self, ops: Sequence[Op], launches: LaunchCounter) -> None:
        self.ops = tuple(ops)
        self.launches = launches
        self.graphs: dict[Key, GraphEntry] = {}
        self.capturing = True

    def key(self, x: np.ndarray) -> Key:
        """What must agree for a recording to fit: the shape and the name of the dtype."""
        return x.shape, x.dtype.name

    def capture(self, x: np.ndarray) -> GraphEntry:
        """A recording of the ops for inputs like `x`, made by running each op once, with one launch each.

        The entry is stored under the key of `x` and returned. Its kernels are the launches in their order: the first
        reads the static input, each other one what the one before has written, and the last writes the output (without
        ops the static input is the output). After the capture the output holds the result for `x`. No array of the
        entry belongs to the caller. A refusal changes nothing.

        Raises:
            RuntimeError: `capturing` is False ("capture is closed, and there is no graph for KEY").
        """
        if not self.capturing:
            raise RuntimeError(f"capture is closed, and there is no graph for {self.key(x)}")
        static_input = x.copy()
        kernels: list[Kernel] = []
        source = static_input
        for op in self.ops:
            self.launches.bump()
            target = op(source)
            kernels.append(Kernel(op, source, target))
            source = target
        entry = self.graphs[self.key(x)] = GraphEntry(static_input, tuple(kernels), source)
        return entry

    def replay(self, entry: GraphEntry, x: np.ndarray) -> np.ndarray:
        """All recorded work for the numbers of `x`, for ONE launch.

        Works on the entry's own arrays, in place: what a kernel reads and writes are the arrays of the recording, and
        nothing is looked at but the entry and `x`, which is not written.

        Returns:
            The entry's output array, with the result for `x`.
        """
        np.copyto(entry.static_input, x)
        self.launches.bump()
        for kernel in entry.kernels:
            np.copyto(kernel.target, kernel.op(kernel.source))
        return entry.output

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Replay the recording for this key, or record one.

        Returns:
            The entry's output array, each time the same object: the next call with this key overwrites it.
        """
        key = self.key(x)
        if key not in self.graphs:
            return self.capture(x).output
        return self.replay(self.graphs[key], x)

    @property
    def num_captured(self) -> int:
        """How many recordings there are."""
        return len(self.graphs)
