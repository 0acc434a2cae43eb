"""Lab 05-01: launches are counted, recordings are keyed, and a replay touches only the arrays of its recording."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mini_vllm

TENFOLD = [lambda a: a * 2, lambda a: a * 5]


def make(impl, ops):
    launches = impl.LaunchCounter()
    return impl.GraphRunner(ops, launches), launches


def ones(n, value=1.0, dtype=np.float32):
    return np.full(n, value, dtype)


# ---- counting --------------------------------------------------------------------------------------------------------


def test_launch_counter(impl):
    a, b = impl.LaunchCounter(), impl.LaunchCounter()
    a.bump()
    a.bump(5)
    assert (a.n, b.n) == (6, 0), "each counter is its own; there is no global one"
    a.bump(0)
    assert a.n == 6, "no launch is no launch"
    a.reset()
    assert (a.n, b.n) == (0, 0)


def test_eager_pays_one_launch_per_op(impl):
    launches = impl.LaunchCounter()
    ops = [lambda a: a + 1, lambda a: a * 3, lambda a: a - 2]
    for call in (1, 2, 3):
        np.testing.assert_array_equal(impl.run_eager(ops, ones(2), launches), [4, 4])
        assert launches.n == 3 * call, "eager never gets cheaper"


def test_eager_leaves_the_input_alone(impl):
    x = ones(3)
    impl.run_eager(TENFOLD, x, impl.LaunchCounter())
    np.testing.assert_array_equal(x, [1, 1, 1])
    assert impl.run_eager([], x, impl.LaunchCounter()) is x, "no ops, no work"


def test_capture_then_replay_is_one_launch(impl):
    runner, launches = make(impl, TENFOLD)
    runner(ones(4))
    assert launches.n == 2, "recording runs the ops once"
    for call in (1, 2, 3):
        runner(ones(4))
        assert launches.n == 2 + call, "each replay is one launch, however many ops it holds"


def test_graphs_win_when_overhead_dominates(impl):
    ops = [lambda a: a + 1, lambda a: a * 2, lambda a: a - 3]
    eager = impl.LaunchCounter()
    runner, launches = make(impl, ops)
    for i in range(100):
        want = impl.run_eager(ops, ones(4, i), eager)
        np.testing.assert_array_equal(runner(ones(4, i)), want)
    assert (eager.n, launches.n) == (300, 3 + 99)


# ---- one recording per key -------------------------------------------------------------------------------------------


def test_key(impl):
    runner, _ = make(impl, TENFOLD)
    assert runner.key(np.zeros((2, 3), np.float32)) == ((2, 3), "float32")
    assert runner.key(np.zeros((3, 2), np.float32)) == ((3, 2), "float32"), "another shape with as many numbers"
    assert runner.key(np.zeros(7, np.int64)) == ((7,), "int64")


def test_new_shape_triggers_recapture(impl):
    runner, launches = make(impl, TENFOLD)
    for n in (4, 8):
        runner(ones(n))
    assert launches.n == 4 and runner.num_captured == 2, "C1: a recording fits one shape only"
    assert set(runner.graphs) == {((4,), "float32"), ((8,), "float32")}
    runner(ones(4)), runner(ones(8))
    assert launches.n == 6 and runner.num_captured == 2, "both are still there"


def test_shapes_with_as_many_numbers_are_different_keys(impl):
    runner, launches = make(impl, [lambda a: a.sum(axis=0), lambda a: a * 2])
    for shape in ((2, 3), (3, 2), (2, 3)):
        x = np.arange(6.0).reshape(shape)
        np.testing.assert_array_equal(runner(x), x.sum(axis=0) * 2)
    assert runner.num_captured == 2 and launches.n == 2 + 2 + 1


def test_no_ops_at_all(impl):
    """Nothing to launch is still a recording: made once, replayed for one launch, in an array of its own."""
    runner, launches = make(impl, [])
    x = ones(3)
    assert not np.shares_memory(runner(x), x)
    np.testing.assert_array_equal(runner(ones(3, 5)), ones(3, 5))
    assert (runner.num_captured, launches.n) == (1, 1)


def test_dtype_is_part_of_the_key(impl):
    runner, _ = make(impl, TENFOLD)
    runner(ones(4))
    out = runner(ones(4, 0.1, np.float64))
    assert runner.num_captured == 2 and out.dtype == np.float64
    np.testing.assert_array_equal(out, ones(4, 0.1, np.float64) * 2 * 5)


def test_entry_is_stored_and_returned(impl):
    runner, launches = make(impl, TENFOLD)
    entry = runner.capture(ones(4))
    assert runner.graphs[((4,), "float32")] is entry
    assert [kernel.op for kernel in entry.kernels] == TENFOLD
    assert launches.n == 2 and isinstance(entry.kernels, tuple)
    np.testing.assert_array_equal(entry.output, ones(4, 10))


def test_each_op_runs_once_a_call(impl):
    """At capture and at replay: an op that counts its calls."""
    calls = []
    runner, _ = make(impl, [lambda a: calls.append("first") or a + 1, lambda a: calls.append("second") or a * 2])
    for n in (1, 2, 3):
        np.testing.assert_array_equal(runner(ones(2, n)), ones(2, 2 * (n + 1)))
        assert calls == ["first", "second"] * n, "the ops, in the order of their calls"


# ---- static buffers --------------------------------------------------------------------------------------------------


def test_replay_output_matches_eager(impl):
    rng = np.random.default_rng(5)
    pool = [lambda a: a + 1, lambda a: a * 0.5, np.tanh, lambda a: a[::-1], lambda a: a, lambda a: a - a.mean()]
    for _ in range(40):
        ops = [pool[i] for i in rng.integers(len(pool), size=rng.integers(1, 9))]
        runner, _ = make(impl, ops)
        for _ in range(6):
            x = rng.standard_normal(rng.integers(1, 4))
            np.testing.assert_array_equal(runner(x), impl.run_eager(ops, x, impl.LaunchCounter()))


def test_static_buffer_reflects_new_input(impl):
    runner, _ = make(impl, TENFOLD)
    runner(ones(4, 1))
    np.testing.assert_array_equal(runner(ones(4, 5)), ones(4, 50))


def test_the_buffer_is_the_same_object(impl):
    runner, _ = make(impl, TENFOLD)
    entry = runner.capture(ones(4))
    buffer = entry.static_input
    runner(ones(4, 7))
    assert runner.graphs[((4,), "float32")] is entry, "a replay makes no new entry"
    assert entry.static_input is buffer and entry.kernels[0].source is buffer, "C2: addresses are baked in"
    np.testing.assert_array_equal(buffer, ones(4, 7))


def test_kernels_form_a_chain(impl):
    runner, _ = make(impl, [lambda a: a + 1, lambda a: a * 2, lambda a: a - 3])
    entry = runner.capture(ones(4))
    for before, after in zip(entry.kernels, entry.kernels[1:], strict=False):
        assert after.source is before.target
    assert entry.output is entry.kernels[-1].target


def test_caller_may_change_the_captured_input(impl):
    runner, _ = make(impl, TENFOLD)
    x = ones(4)
    out = runner(x)
    x[:] = 99
    assert not np.shares_memory(x, runner.graphs[((4,), "float32")].static_input), "the buffer is the runner's own"
    np.testing.assert_array_equal(out, ones(4, 10))
    replayed = ones(4, 3)
    runner(replayed)
    np.testing.assert_array_equal(replayed, ones(4, 3))
    runner, _ = make(impl, [lambda a: a, lambda a: a[::-1]])
    views = np.arange(4.0)
    entry = runner.capture(views)
    shared = [np.shares_memory(views, a) for k in entry.kernels for a in (k.source, k.target)]
    assert not any(shared), "ops that give views give views of the runner's copy"


def test_output_is_overwritten_by_the_next_replay(impl):
    """Real graphs do the same: the output lies at an address of the graph's pool. Copy what you want to keep."""
    runner, _ = make(impl, TENFOLD)
    first = runner(ones(4, 1))
    second = runner(ones(4, 2))
    third = runner(ones(4, 3))
    assert first is second is third is runner.graphs[((4,), "float32")].output
    np.testing.assert_array_equal(first, ones(4, 30))


def test_replay_looks_at_nothing_but_the_recording(impl):
    """The Python around the ops is gone: what the runner's list says after the capture does not matter any more."""
    runner, launches = make(impl, TENFOLD)
    entry = runner.capture(ones(2))
    runner.ops = (lambda a: a * 0,)
    np.testing.assert_array_equal(runner.replay(entry, ones(2, 8)), ones(2, 80))
    assert launches.n == 3


# ---- the capture window ----------------------------------------------------------------------------------------------


def test_no_capture_after_the_start(impl):
    runner, launches = make(impl, TENFOLD)
    runner(ones(4))
    runner.capturing = False
    np.testing.assert_array_equal(runner(ones(4, 2)), ones(4, 20)), "known keys go on"
    text = re.escape("capture is closed, and there is no graph for ((5,), 'float32')")
    for refused in (runner, runner.capture):
        with pytest.raises(RuntimeError, match=f"^{text}$"):
            refused(ones(5))
    assert runner.num_captured == 1 and launches.n == 3, "nothing was launched for the refused one"
    assert runner.capturing is False, "and the window is still closed"


def test_starts_open_and_empty(impl):
    runner, launches = make(impl, TENFOLD)
    assert runner.capturing and runner.num_captured == 0 and launches.n == 0


# ---- the engine's own ------------------------------------------------------------------------------------------------


def test_as_the_engine(impl):
    """Random ops, shapes and dtypes: the same outputs, launches and recordings as mini_vllm's, call by call."""
    rng = np.random.default_rng(1)
    pool = [lambda a: a + 1, lambda a: a * 3, lambda a: a[::-1], lambda a: a, lambda a: a - a.sum()]
    for _ in range(30):
        ops = [pool[i] for i in rng.integers(len(pool), size=rng.integers(1, 7))]
        runner, launches = make(impl, ops)
        theirs = mini_vllm.LaunchCounter()
        engine = mini_vllm.GraphRunner(ops, theirs)
        for _ in range(12):
            x = rng.integers(-5, 5, size=rng.integers(1, 5)).astype(rng.choice(["int64", "float32"]))
            np.testing.assert_array_equal(runner(x), engine(x))
            assert (launches.n, runner.num_captured) == (theirs.n, engine.num_captured)
