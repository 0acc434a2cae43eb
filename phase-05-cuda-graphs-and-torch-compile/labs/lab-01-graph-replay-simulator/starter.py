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
        raise NotImplementedError("add k to n")

    def reset(self) -> None:
        """Start again from zero."""
        raise NotImplementedError("set n back to 0")


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
    """Run the ops one after the other: one launch each, on every call."""
    raise NotImplementedError("run each op on the result of the one before, and count one launch for each")


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
        raise NotImplementedError("return the shape and the name of the dtype as a pair")

    def capture(self, x: np.ndarray) -> GraphEntry:
        """Record the ops on a copy of `x`: run each (one launch each) and note what it read and wrote.

        The result is stored under the key of `x`. No array of the entry belongs to the caller.

        Raises:
            RuntimeError: `capturing` is False ("capture is closed ...").
        """
        raise NotImplementedError(
            "run the ops on a copy of x, and note for each the array that it read and the one that it wrote"
        )

    def replay(self, entry: GraphEntry, x: np.ndarray) -> np.ndarray:
        """Copy `x` into the static input, do all recorded work for ONE launch, return the entry's own output array.

        Each kernel reads its recorded source and writes into its recorded target; nothing else is looked at.
        """
        raise NotImplementedError(
            "copy x into the static input, count one launch, and run each kernel from its source into its target"
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Replay the recording for this key, or record one.

        Returns:
            The entry's output array, each time the same object: the next call with this key overwrites it.
        """
        raise NotImplementedError(
            "look the key up: replay what is there, capture what is not, and return the entry's output"
        )

    @property
    def num_captured(self) -> int:
        """How many recordings there are."""
        raise NotImplementedError("return the number of recordings")
