"""Capture and replay in their simplest form: launches counted, memory that stays where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm.compilation.cudagraph.runners import GraphRunner, LaunchCounter, PiecewiseGraphRunner, run_eager

OPS = [lambda x: x + 1, lambda x: x * 2, lambda x: x - 3]


def double(x: Any) -> Any:
    return 2 * (x + 1) - 3


def test_eager_pays_for_every_operation_every_time() -> None:
    launches = LaunchCounter()
    for _ in range(4):
        np.testing.assert_array_equal(run_eager(OPS, np.ones(3), launches), double(np.ones(3)))
    assert launches.n == 12
    launches.reset()
    assert launches.n == 0


def test_capture_costs_every_operation_and_a_replay_one_launch() -> None:
    launches = LaunchCounter()
    runner = GraphRunner(OPS, launches)
    for call in range(100):
        np.testing.assert_array_equal(runner(np.full(4, float(call))), double(np.full(4, float(call))))
    assert launches.n == 3 + 99 and runner.num_captured == 1


def test_a_replay_uses_the_memory_of_the_recording() -> None:
    runner = GraphRunner(OPS, LaunchCounter())
    first_input = np.ones(4)
    first = runner(first_input)
    [entry] = runner.graphs.values()
    before = entry.static_input, *(kernel.target for kernel in entry.kernels)
    first_input[:] = 7.0  # the caller's own memory is none of the graph's
    np.testing.assert_array_equal(entry.static_input, np.ones(4))
    second = runner(np.full(4, 5.0))
    after = entry.static_input, *(kernel.target for kernel in entry.kernels)
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert second is first and first[0] == double(5.0)  # the earlier result is gone


def test_each_shape_and_type_has_a_graph_of_its_own() -> None:
    launches = LaunchCounter()
    runner = GraphRunner(OPS, launches)
    for x in (np.ones(4), np.ones(8), np.ones(4, np.float32), np.ones((2, 2)), np.ones(8)):
        np.testing.assert_array_equal(runner(x), double(x))
    assert runner.num_captured == 4 and launches.n == 4 * 3 + 1


def test_operations_in_place_and_operations_that_do_nothing() -> None:
    def add_in_place(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    runner = GraphRunner([lambda x: x, add_in_place, lambda x: x.T], LaunchCounter())
    for value in (1.0, 5.0):
        assert (runner(np.full((2, 3), value)) == value + 1).all()


def test_after_the_start_an_unknown_shape_is_an_error() -> None:
    runner = GraphRunner(OPS, LaunchCounter())
    runner(np.ones(4))
    runner.capturing = False
    runner(np.ones(4))
    with pytest.raises(RuntimeError, match=r"capture is closed.*shape \(5,\)"):
        runner(np.ones(5))


def test_pieces_around_an_operation_that_cannot_be_captured() -> None:
    launches = LaunchCounter()
    ops = [OPS[0], OPS[1], np.cumsum, OPS[2], OPS[0]]
    runner = PiecewiseGraphRunner(ops, lambda i: i != 2, launches)
    assert runner.num_graphs == 2
    for call, expected in ((1.0, 5), (2.0, 3), (3.0, 3)):
        launches.reset()
        np.testing.assert_array_equal(runner(np.full(6, call)), run_eager(ops, np.full(6, call), LaunchCounter()))
        assert launches.n == expected


def test_ten_operations_split_at_the_sixth() -> None:
    launches = LaunchCounter()
    runner = PiecewiseGraphRunner([OPS[0]] * 10, lambda i: i != 5, launches)
    runner(np.ones(2))
    launches.reset()
    runner(np.ones(2))
    assert launches.n == 3
    everything = PiecewiseGraphRunner([OPS[0]] * 10, lambda i: True, launches)
    nothing = PiecewiseGraphRunner([OPS[0]] * 10, lambda i: False, launches)
    assert (everything.num_graphs, nothing.num_graphs) == (1, 0)
