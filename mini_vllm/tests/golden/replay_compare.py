"""What all replays of recorded schedulers share: a recording, and where ours parts from it."""

from functools import lru_cache

import pytest

from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN


@lru_cache
def recording(name):
    """The recorded traces of a file, and their provenance."""
    return read_packed(GOLDEN / name)


def two_columns(theirs, ours):
    """The fields that differ, side by side; "-" where a record has none."""
    rows = [f"{'':10} {'vLLM 0.22.1':60} mini_vllm"]
    both = [(key, theirs.get(key, "-"), ours.get(key, "-")) for key in {**theirs, **ours}]
    rows += [f"{key:10} {one!s:60} {other}" for key, one, other in both if one != other]
    return "\n".join(rows)


def first_parting(replay, steps):
    """(step, description) of the first of the recorded steps at which the replay parts from them, or None.

    replay: a `Replay` that has not begun.
    """
    workload = replay.workload
    for index, theirs in enumerate(steps):
        ours = replay.step(index)
        if ours != theirs:
            return index, f"workload {workload.seed} {workload.config}, step {index}:\n{two_columns(theirs, ours)}"
    if replay.scheduler.has_unfinished_requests():
        return len(steps), f"workload {workload.seed}: ours goes on after {len(steps)} steps"
    return None


def in_parts(count, fast=1):
    """Gives a test `part`, a number below `count`; the first `fast` of them are not slow."""
    slow = [pytest.param(part, marks=pytest.mark.slow) for part in range(fast, count)]
    return pytest.mark.parametrize("part", [*range(fast), *slow])


def assert_no_difference(first_difference, seeds):
    """Every workload goes the recorded way to its end."""
    for seed in seeds:
        difference = first_difference(seed)
        assert difference is None, difference[1]


def notices(first_difference, seeds):
    """Whether one of the workloads goes another way, or breaks: what a scheduler that was made wrong has to do."""

    def parts(seed):
        try:
            return first_difference(seed)
        except (AssertionError, ValueError, IndexError, KeyError, StopIteration):
            return "it breaks"

    return any(parts(seed) for seed in seeds)
