"""Lab 10-04: bubbles by a formula and by counting, and who goes into the next micro-batch of a decoding pipeline."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

given = load(Path(__file__).resolve().parent / "given.py")
SIZES = [(1, 1), (1, 7), (2, 1), (4, 1), (4, 8), (8, 3), (3, 30), (16, 64), (2, 300)]


# ---- formulas ------------------------------------------------------------------------------------------------------


def test_total_ticks(impl):
    for (p, m), wanted in {(1, 1): 1, (1, 5): 5, (4, 1): 4, (4, 8): 11, (8, 63): 70}.items():
        found = impl.pipeline_total_ticks(p, m)
        assert found == wanted, f"{p} stages, {m} micro-batches: got {found} ticks, expected {wanted}"


def test_bubble_formula(impl):
    for (p, m), wanted in {(1, 1): 0, (1, 9): 0, (4, 1): 0.75, (2, 1): 0.5, (4, 8): 3 / 11, (8, 63): 0.1}.items():
        found = impl.bubble_fraction(p, m)
        assert found == pytest.approx(wanted, abs=1e-12), (
            f"{p} stages, {m} micro-batches: got {found}, expected {wanted}"
        )
    assert 0 < impl.bubble_fraction(4, 10**6) < 1e-5, "many micro-batches: nearly nothing, never nothing"


def test_doors(impl):
    for call in (impl.pipeline_total_ticks, impl.bubble_fraction, impl.simulate_schedule):
        for wrong in (0, -3):
            with pytest.raises(ValueError, match=rf"^p must be at least 1, got {wrong}$"):
                call(wrong, 2)
            with pytest.raises(ValueError, match=rf"^m must be at least 1, got {wrong}$"):
                call(2, wrong)
    with pytest.raises(ValueError, match=r"^p must be at least 1, got 0$"):
        impl.min_microbatches_for_bubble(0, 0.5)
    with pytest.raises(ValueError, match=r"^p must be at least 1, got 0$"):  # of two faults the first argument's
        impl.min_microbatches_for_bubble(0, 0)


# ---- counting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_schedule_grid_matches_the_formula(impl, p, m):
    grid = np.asarray(impl.simulate_schedule(p, m))
    assert grid.shape == (p, impl.pipeline_total_ticks(p, m)) and grid.dtype.kind == "i"
    idle, says = (grid == -1).mean(), impl.bubble_fraction(p, m)
    what = f"{p} stages, {m} micro-batches: {idle:.3f} of the cells are idle, the formula says {says:.3f}"
    assert idle == pytest.approx(says, abs=1e-12), what


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_every_stage_sees_every_microbatch_in_order(impl, p, m):
    grid = np.asarray(impl.simulate_schedule(p, m))
    for stage, row in enumerate(grid):
        did = row[row != -1].tolist()
        assert did == list(range(m)), f"stage {stage} of {p}: got {did}, expected each of {m} once, in order"


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_a_microbatch_is_on_one_stage_at_a_time(impl, p, m):
    grid = np.asarray(impl.simulate_schedule(p, m))
    for tick, column in enumerate(grid.T):
        here = column[column != -1].tolist()
        assert len(set(here)) == len(here), f"tick {tick}: micro-batches {here} on stages at once"
    for each in range(m):
        stages, ticks = np.where(grid == each)
        order = ticks[np.argsort(stages)].tolist()
        assert order == list(range(each, each + p)), (
            f"micro-batch {each}: on its stages at ticks {order}, as soon as it can"
        )


# ---- a budget ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "budget", "wanted"),
    [
        (8, 0.1, 63), (4, 0.3, 7), (4, 0.1, 27), (16, 0.1, 135), (2, 0.5, 1), (2, 0.49, 2), (4, 0.75, 1), (4, 1, 1),
        (1, 0.01, 1), (8, 0.05, 133), (4, 0.2, 12), (4, 0.6, 2), (4, 0.01, 297), (2, 1e-9, 999_999_999),
    ],
)  # fmt: skip
def test_min_microbatches_for_a_bubble_budget(impl, p, budget, wanted):
    """Floats: 7 * 0.9 / 0.1 is 62.99999999999999. And a billion is too many to try one by one."""
    found = impl.min_microbatches_for_bubble(p, budget)
    assert found == wanted, f"{p} stages, a bubble of at most {budget}: got {found}, expected {wanted}"


def test_the_smallest_that_keeps_the_budget(impl):
    chance = random.Random(0)
    cases = [(2, 1e-14), (5, 3e-15)]  # however small: no search ends before it is found
    cases += [(chance.randint(2, 24), chance.choice([chance.random(), 1 / chance.randint(1, 40)])) for _ in range(300)]
    for p, budget in cases:
        m = impl.min_microbatches_for_bubble(p, budget)
        assert impl.bubble_fraction(p, m) <= budget, f"{p} stages, budget {budget}: {m} breaks it"
        assert m == 1 or impl.bubble_fraction(p, m - 1) > budget, f"{p} stages, budget {budget}: {m - 1} keeps it, too"


def test_no_budget(impl):
    for wrong in (0, -0.1, 1.5, float("nan")):
        for p in (1, 4):
            with pytest.raises(ValueError, match=rf"^budget must be above 0 and at most 1, got {wrong}$"):
                impl.min_microbatches_for_bubble(p, wrong)


# ---- a pipeline that decodes ---------------------------------------------------------------------------------------


def arriving(seed):
    chance, at, jobs = random.Random(seed), 0.0, []
    for _ in range(150):
        at += chance.expovariate(1 / 3)
        jobs.append((at, chance.randint(5, 60)))
    return jobs


def of_many_lengths(seed):
    chance = random.Random(seed)
    return [(0.0, chance.randint(5, 100)) for _ in range(64)]


TOGETHER = [(0.0, 50)] * 64
BURSTS = [(burst * 40.0, 30) for burst in range(6) for _ in range(24)]
TRAFFIC = {  # name: jobs, stages, ms of a micro-batch and of a row, at least so many times the throughput of all_ready
    "64 at once": (TOGETHER, 4, 1.0, 0.05, 2.2),
    "64 at once, rows alone count": (TOGETHER, 4, 0.01, 0.1, 3.7),
    "64 at once, rows cost nothing": (TOGETHER, 4, 1.0, 0.0, 0.95),
    "64 at once, two stages": (TOGETHER, 2, 1.0, 0.05, 1.55),
    "64 at once, eight stages": (TOGETHER, 8, 1.0, 0.05, 2.7),
    "one stage": (TOGETHER, 1, 1.0, 0.05, 1.0),
    "one user": ([(0.0, 50)], 4, 1.0, 0.05, 1.0),
    "two users": ([(0.0, 50)] * 2, 4, 1.0, 0.05, 1.03),
    "five users": ([(0.0, 50)] * 5, 4, 1.0, 0.05, 1.1),
    "of many lengths": (of_many_lengths(0), 4, 1.0, 0.05, 1.65),
    "arriving one by one": (arriving(0), 4, 1.0, 0.05, 1.08),
    "in bursts": (BURSTS, 4, 1.0, 0.05, 1.35),
}


@pytest.mark.parametrize("name", TRAFFIC)
def test_the_stages_are_kept_busy(impl, name):
    jobs, stages, fixed_ms, row_ms, wanted = TRAFFIC[name]
    before = given.simulate(given.all_ready, stages, jobs, fixed_ms, row_ms)
    after = given.simulate(impl.rows_to_take, stages, jobs, fixed_ms, row_ms)
    assert after.tokens == sum(tokens for _, tokens in jobs)
    gain = after.throughput / before.throughput
    assert gain >= wanted, (
        f"{name}: {gain:.2f} times the tokens a second of 'everybody who is ready', expected {wanted}. The stages are "
        f"busy {after.busy:.0%} of the time (before: {before.busy:.0%}), with micro-batches of {after.sizes[:8]} …"
    )


@pytest.mark.parametrize("name", ("64 at once", "of many lengths", "arriving one by one", "in bursts"))
def test_nobody_waits_long(impl, name):
    """A lap of four micro-batches of 16 takes 7.2 ms; nobody who is ready waits for more than two."""
    jobs, stages, fixed_ms, row_ms, _ = TRAFFIC[name]
    found = given.simulate(impl.rows_to_take, stages, jobs, fixed_ms, row_ms)
    assert found.waits <= 14.4, (
        f"{name}: somebody was ready for {found.waits:.1f} ms before the next micro-batch took her"
    )


def test_what_may_be_taken(impl):
    for stages in (1, 2, 4, 8):
        for running in (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 64):
            for ready in range(1, running + 1):
                for in_flight in range(min(stages, running - ready + 1)):
                    found = impl.rows_to_take(ready, running, in_flight, stages)
                    least = 0 if in_flight else 1
                    assert isinstance(found, int) and least <= found <= ready, (
                        f"{ready} of {running} are ready, {in_flight} of {stages} in flight: got {found!r}"
                    )


def test_a_share_has_no_limit(impl):
    """Where the weights take 20 ms to read, 4,000 users on four stages are four micro-batches, however large."""
    jobs = [(0.0, 3)] * 4000
    before, after = (given.simulate(rule, 4, jobs, 20.0, 0.05) for rule in (given.all_ready, impl.rows_to_take))
    gain = after.throughput / before.throughput
    assert gain > 2.2, f"4,000 users: {gain:.2f} times the tokens a second, expected above 2.2; {after.sizes[:8]} …"


def test_busy_is_not_fast(impl):
    """Control: one request a micro-batch keeps every stage busy, and makes a quarter of the tokens."""
    jobs = [(0.0, 10)] * 64
    single, mine = given.simulate(lambda *_: 1, 4, jobs), given.simulate(impl.rows_to_take, 4, jobs)
    assert single.busy > 0.99 and mine.busy > 0.9
    assert mine.throughput > 5 * single.throughput, f"{mine.throughput:.0f} and {single.throughput:.0f} tokens/s"


def test_your_prediction(impl):
    before = given.simulate(given.all_ready, 4, [(0.0, 200)] * 64)
    after = given.simulate(lambda ready, running, *_: min(ready, 16), 4, [(0.0, 200)] * 64)
    gain, mine = after.throughput / before.throughput, impl.predicted_speedup()
    assert isinstance(mine, (int, float)), f"got {mine!r}, expected a number"
    assert abs(mine / gain - 1) < 0.1, (
        f"you said {mine}; {before.throughput:,.0f} tokens/s become {after.throughput:,.0f}, {gain:.2f} times as many, "
        f"while the stages are busy {before.busy:.0%} and then {after.busy:.0%} of the time"
    )
