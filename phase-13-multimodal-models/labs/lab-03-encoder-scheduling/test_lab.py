"""Lab 13-03: cuts around pictures, on the layout of the README, on cases by chance, and beside our engine."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from course.labs import load
from mini_vllm.multimodal.inputs import PlaceholderRange

given = load(Path(__file__).resolve().parent / "given.py")
TWO, TEN = given.TWO, given.TEN
PLENTY = 10_000


def plan(impl, num_computed, num_new, budget, cached=(), cache_free=PLENTY, ranges=TWO):
    """The plan of a step for the prompt of the README; what was given is as it was."""
    kept, places = set(cached), list(ranges)
    found = impl.plan_chunk(num_computed, num_new, places, budget, kept, cache_free)
    assert kept == set(cached) and places == list(ranges), "plan_chunk changed what it was given"
    return found


@pytest.fixture
def ends(impl, monkeypatch):
    """A trace that gets nowhere is told by the number of its plans, long before a limit of time."""
    plan_chunk, plans = impl.plan_chunk, []

    def counted(*asked, **named):
        plans.append(asked)
        assert len(plans) < 1000, "got 1,000 plans and no end of the prompt, expected ten at most: it waits for ever"
        return plan_chunk(*asked, **named)

    monkeypatch.setattr(impl, "plan_chunk", counted)


# ---- one step ------------------------------------------------------------------------------------------------------


def test_pure_text_chunk_is_unconstrained(impl):
    assert plan(impl, 0, 50, 0) == (50, [], 0, PLENTY)
    assert plan(impl, 0, 50, 128).encode == [], (
        "the chunk ends where picture A starts, and nothing of it is needed: this looks like *One too far*"
    )
    assert plan(impl, 0, 51, 0) == (50, [], 0, PLENTY), "the 51st token is A's first"
    assert plan(impl, 0, 51, 100).encode == [0], "one token of it is enough to need all of it"


def test_entering_an_image_schedules_its_encoder(impl):
    found = plan(impl, 0, 90, 128)
    assert found.budget_left != 88, "40 of 100 were charged: this looks like *Only the part that is reached*"
    assert found == (90, [0], 28, PLENTY - 100)


def test_unaffordable_image_truncates_the_chunk(impl):
    assert plan(impl, 0, 90, 99) == (50, [], 99, PLENTY)
    assert plan(impl, 20, 70, 99) == (30, [], 99, PLENTY), "20 are there, 30 lead up to A (*A place for a length*)"
    assert plan(impl, 0, 90, 100) == (90, [0], 0, PLENTY - 100), "100 is enough for 100"


def test_cached_image_costs_nothing(impl):
    assert plan(impl, 0, 90, 0, {0}, 0) == (90, [], 0, 0), "A is in the cache (*Paid twice*)"


def test_continuation_mid_placeholder_needs_no_new_encode(impl):
    assert plan(impl, 90, 40, 0, {0}) == (40, [], 0, PLENTY)
    assert plan(impl, 90, 81, 0, {0}).num_new_tokens == 80, "up to B, which nobody has encoded"


def test_what_is_passed_needs_no_encoder(impl):
    found = plan(impl, 150, 20, 200)
    assert found.encode == [], "all of A's tokens have keys and values: this looks like *Encoded once more*"
    assert found == (20, [], 200, PLENTY)
    assert plan(impl, 149, 21, 100) == (21, [0], 0, PLENTY - 100), "the last token of A is still to be computed"


def test_budget_splits_across_two_images(impl):
    assert plan(impl, 0, 300, 150) == (170, [0], 50, PLENTY - 100)
    assert plan(impl, 0, 300, 200) == (300, [0, 1], 0, PLENTY - 200)


def test_progress_is_always_possible(impl):
    at_once = [PlaceholderRange(0, 10)]
    assert plan(impl, 0, 20, 0, ranges=at_once) == (0, [], 0, PLENTY), "a delay: the next step has a new budget"
    assert plan(impl, 0, 20, 10, ranges=at_once) == (20, [0], 0, PLENTY - 10)


def test_a_prefix_hit_may_end_inside_an_image(impl):
    found = plan(impl, 60, 10, 0)
    assert found.num_new_tokens >= 0, f"{found.num_new_tokens} tokens: this looks like *Backwards*"
    assert found == (0, [], 0, PLENTY)
    assert plan(impl, 60, 10, 100) == (10, [0], 0, PLENTY - 100), "encoded whole, though 10 of it were computed"


def test_nothing_is_planned_behind_a_cut(impl):
    ranges = [PlaceholderRange(10, 50), PlaceholderRange(70, 5), PlaceholderRange(80, 5)]
    found = plan(impl, 0, 100, 20, ranges=ranges)
    assert found.encode == [], "the chunk ends before the first picture: this looks like *On to the next one*"
    assert found == (10, [], 20, PLENTY)


# ---- the third pool ------------------------------------------------------------------------------------------------


def test_the_cache_may_be_what_is_full(impl):
    found = plan(impl, 0, 90, 128, cache_free=99)
    assert found.encode == [], "100 embeddings, room for 99: this looks like *Nowhere to put it*"
    assert found == (50, [], 128, 99)
    assert plan(impl, 0, 90, 128, cache_free=100) == (90, [0], 28, 0)


def test_both_pictures_need_room_together(impl):
    found = plan(impl, 0, 300, 200, cache_free=150)
    assert found.encode != [0, 1], "each fits, both do not: this looks like *The same room twice*"
    assert found == (170, [0], 100, 50)


def test_what_must_hold_for_any_prompt(impl):
    rng = random.Random(0)
    for case in range(200):
        num_tokens, ranges = given.album(case)
        computed, budget, room = rng.randrange(num_tokens), rng.randint(0, 700), rng.randint(0, 700)
        wanted = rng.randint(1, num_tokens - computed)
        cached = {i for i in range(len(ranges)) if rng.random() < 0.3}
        found = plan(impl, computed, wanted, budget, cached, room, ranges)
        end, what = computed + found.num_new_tokens, f"case {case}: {found}"
        assert 0 <= found.num_new_tokens <= wanted, what
        reached = [i for i, where in enumerate(ranges) if where.offset < end and where.end > computed]
        assert found.encode == [i for i in reached if i not in cached][: len(found.encode)], what
        if found.num_new_tokens:
            assert set(reached) <= cached | set(found.encode), f"{what}: a token without its picture"
        spent = sum(ranges[i].length for i in found.encode)
        assert (budget - found.budget_left, room - found.cache_left) == (spent, spent), what
        assert min(found.budget_left, found.cache_left) >= 0, what
        if found.num_new_tokens < wanted:
            stops = [w for i, w in enumerate(ranges) if w.offset <= end < w.end and i not in cached]
            assert stops and stops[0].length > min(found.budget_left, found.cache_left), f"{what}: why not more?"


def test_our_engine_says_the_same(impl):
    rng = random.Random(1)
    for case in range(200):
        num_tokens, ranges = given.album(1000 + case)
        computed = rng.randrange(num_tokens)
        wanted, budget, room = rng.randint(1, num_tokens - computed), rng.randint(0, 700), rng.randint(0, 700)
        cached = {i for i in range(len(ranges)) if rng.random() < 0.3}
        found = plan(impl, computed, wanted, budget, cached, room, ranges)
        engine = given.engine_plan(computed, wanted, ranges, budget, cached, room)
        asked = f"case {case}: {computed} computed, {wanted} wanted, budget {budget}, room {room}, cached {cached}"
        assert (found.num_new_tokens, found.encode) == engine, f"{asked}, {ranges}"


# ---- step after step -----------------------------------------------------------------------------------------------


def test_the_trace_of_the_readme(impl):
    assert impl.trace(300, TWO, 1000, 150, 1000) == [(0, 170, [0], 100), (170, 130, [1], 100)]
    found = impl.trace(300, TWO, 64, 150, 1000)
    assert [step.num_new_tokens for step in found] == [64, 64, 64, 64, 44]
    assert [step.encode for step in found] == [[0], [], [1], [], []], "each picture is encoded once"
    assert [step.held for step in found] == [100, 100, 200, 100, 100]


@pytest.mark.usefixtures("ends")
def test_what_is_passed_makes_room(impl):
    found = impl.trace(300, TWO, 1000, 200, 100)
    assert found == [(0, 170, [0], 100), (170, 130, [1], 100)], "A is passed at 150 (*Nothing is ever let go*)"
    tight = impl.trace(300, TWO, 64, 200, 150)
    assert tight == [(0, 64, [0], 100), (64, 64, [], 100), (128, 42, [], 100), (170, 64, [1], 100), (234, 64, [], 100),
                     (298, 2, [], 0)], "A's last tokens and B do not fit beside each other"  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "size", "says"),
    [
        (99, 150, "picture 0 has 100 embeddings, a step may encode 99 and the cache holds 150: it would wait for ever"),
        (150, 99, "picture 0 has 100 embeddings, a step may encode 150 and the cache holds 99: it would wait for ever"),
    ],
)
@pytest.mark.usefixtures("ends")
def test_what_would_wait_for_ever_is_refused(impl, budget, size, says):
    with pytest.raises(ValueError, match=says):
        impl.trace(300, TWO, 64, budget, size)
    with pytest.raises(ValueError, match="picture 1 has 101 embeddings"):
        impl.trace(300, [given.A, PlaceholderRange(170, 101)], 64, 100, 100)
    assert len(impl.trace(300, TWO, 300, 100, 100)) == 2


def test_no_pictures(impl):
    assert impl.trace(10, [], 4, 0, 0) == [(0, 4, [], 0), (4, 4, [], 0), (8, 2, [], 0)]


def test_our_engine_takes_the_same_steps(impl):
    """It keeps what nobody needs until somebody wants the room. For a prompt alone that changes nothing."""
    rng = random.Random(2)
    for case in range(80):
        num_tokens, ranges = given.album(2000 + case)
        largest = max(where.length for where in ranges)
        setting = rng.randint(20, 500), largest + rng.randint(0, 300), largest + rng.randint(0, 300)
        found = [tuple(step)[:3] for step in impl.trace(num_tokens, ranges, *setting)]
        assert found == given.engine_trace(num_tokens, ranges, *setting), f"case {case}: {setting}, {ranges}"


def test_your_prediction(impl):
    predicted = impl.predicted_steps()
    found = tuple(len(impl.trace(6000, TEN, 1024, *pair)) for pair in ((1024, 1024), (1152, 1152), (1152, 1728)))
    assert predicted == found, f"you predicted {predicted} steps, your trace takes {found}"


# ---- what others wait for ------------------------------------------------------------------------------------------


def test_work_of_a_step(impl):
    ranges, step = list(TWO), impl.Step(0, 64, [0], 100)
    assert impl.step_work(step, ranges) == 64 + 3 * 100
    assert impl.step_work(impl.Step(64, 64, [], 100), ranges) == 64
    assert impl.step_work(impl.Step(0, 300, [0, 1], 200), ranges) == 300 + 3 * 200, "both pictures are encoded"
    assert (ranges, step.encode) == (TWO, [0]), "step_work changed what it was given"


def test_settings_for_text_alone(impl):
    for num_tokens in (60, 1200):
        found = impl.choose(num_tokens, [], 600, 0)
        steps = impl.trace(num_tokens, [], *found)
        worst = max(impl.step_work(step, []) for step in steps)
        assert worst <= 600 and found[2] <= 0, f"{num_tokens} tokens, no picture: {found}, a step has {worst} of 600"
        most = -(-num_tokens // 600)
        assert len(steps) == most, f"{num_tokens} tokens of text, 600 a step: {found} takes {len(steps)}, not {most}"


@pytest.mark.parametrize(("seed", "best"), [(3, 9), (5, 7), (8, 7), (13, 8)])
def test_your_settings(impl, seed, best):
    """`best` is the fewest steps of a search over 700 settings, done once."""
    num_tokens, ranges = given.album(seed, 20, 30)
    largest = max(where.length for where in ranges)
    most_work, most_cache, given_ranges = 3 * largest + 600, 2 * largest, list(ranges)
    found = impl.choose(num_tokens, ranges, most_work, most_cache)
    assert ranges == given_ranges, "choose changed the caller's ranges"
    steps = impl.trace(num_tokens, ranges, *found)
    worst = max(impl.step_work(step, ranges) for step in steps)
    assert found[2] <= most_cache and worst <= most_work, f"{found}: a step has {worst} of {most_work}"
    assert len(steps) <= 1.15 * best, f"{found}: {len(steps)} steps, and {best} would do"
