"""Lab 09-04: the same tokens for the same seed, whoever else is there; and draws that are still a matter of chance."""

from __future__ import annotations

import gc
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
FLAT = np.zeros(50)
LAW = "a token depends on seed, num_output_tokens, temperature and the row's logits"


def draw(impl, sampler, position=0, seed=7, logits=FLAT, temperature=1.0, name=None):
    """One token, alone in its step. A request has one seed as long as it lives."""
    row = impl.Row(name or f"seed {seed}", seed, temperature, position)
    (token,) = sampler.sample([row], np.asarray(logits)[None])
    return token


def stream(impl, steps=20, **row):
    """What a request gets that is always alone."""
    sampler = impl.PerRequestSampler()
    return [draw(impl, sampler, position, **row) for position in range(steps)]


def agree(got, want, words):
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
    assert at is None, f"token {at} is {got[at]}, alone and undisturbed it is {want[at]}. {words}"


def surprise(counts, expected):
    """Chi-square in standard deviations above its mean."""
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5


# ---- what it depends on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 7, (1 << 63) - 1])
def test_the_same_seed_gives_the_same_tokens(impl, seed):
    first = stream(impl, seed=seed)
    agree(stream(impl, seed=seed, name="another name"), first, f"Seed {seed} in a second sampler: {LAW}")
    assert first != stream(impl, seed=seed + 1), f"seeds {seed} and {seed + 1} give the same twenty tokens"
    assert all(type(token) is int for token in first), "tokens are plain ints"


@pytest.mark.parametrize("neighbours", [1, 5])
def test_neighbours_change_nothing(impl, neighbours):
    sampler, got = impl.PerRequestSampler(), []
    for position in range(20):
        rows = [impl.Row(f"n{i}", [100 + i, None][i % 2], [1.0, 0.5, 0.0][i % 3], position) for i in range(neighbours)]
        rows.append(impl.Row("A", 7, 1.0, position))
        got.append(sampler.sample(rows, np.zeros((len(rows), 50)))[-1])
    agree(got, stream(impl), f"{neighbours} neighbours stand before it. This looks like *One stream for all*")


def test_rows_may_move(impl):
    """The batch is condensed, reordered, and others come and go: the request keeps its tokens."""
    sampler, rng, got = impl.PerRequestSampler(), np.random.default_rng(3), []
    for position in range(20):
        rows = [impl.Row(f"n{i}", i, 1.0, 5) for i in rng.permutation(9)[: rng.integers(1, 9)]]
        place = int(rng.integers(len(rows) + 1))
        rows.insert(place, impl.Row("A", 7, 1.0, position))
        got.append(sampler.sample(rows, np.zeros((len(rows), 50)))[place])
    agree(got, stream(impl), "Its place in the batch changed. This looks like *Keyed by the row*")


def test_a_token_thrown_away_is_drawn_again(impl):
    """A chunk of a prompt is sampled and dropped; a step is undone; a preempted request has to say it all again."""
    sampler, want = impl.PerRequestSampler(), stream(impl)
    asked = [0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 7, 12, 3]
    got = [draw(impl, sampler, position) for position in asked]
    agree(got, [want[position] for position in asked], f"Asked in this order: {asked}. *A stream that only goes on*")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_are_left_alone(impl, dtype):
    logits = np.random.default_rng(0).normal(size=(3, 40)).astype(dtype)
    before, sampler = logits.copy(), impl.PerRequestSampler()
    rows = [impl.Row(name, 3, temperature, 0) for name, temperature in (("a", 0.0), ("b", 0.7), ("c", 1.0))]
    got = sampler.sample(rows, logits)
    assert np.array_equal(logits, before), "the caller's logits were changed"
    agree(got, sampler.sample(rows, before.astype(np.float64)), "The same numbers in float64: compute in float64")


# ---- chance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("temperature", "want"), [(1.0, [0.5, 0.3, 0.15, 0.05]), (2.0, [0.379, 0.294, 0.208, 0.120])])
@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_tokens_come_as_often_as_they_should(impl, over, temperature, want):
    logits = np.append(np.log([0.5, 0.3, 0.15, 0.05]), -np.inf) + 700
    sampler, pairs = impl.PerRequestSampler(), [(5, n) if over == "positions" else (n, 5) for n in range(3000)]
    got = [draw(impl, sampler, position, seed, logits, temperature) for seed, position in pairs]
    shares = np.bincount(got, minlength=5) / 3000
    assert shares[4] == 0, "a token with logit -inf was drawn"
    assert np.abs(shares[:4] - want).max() < 0.035, (
        f"T = {temperature}, over 3,000 {over}: shares {shares[:4].round(3)}, wanted {want}. "
        "This looks like *Starting anew at each step*, if one token has them all"
    )


def test_positions_are_independent(impl):
    """Pairs of neighbours in one stream, and steps of it: as in a table of chance."""
    got = np.array(stream(impl, 4001, logits=np.zeros(8)))
    counts = np.bincount(got[:-1] * 8 + got[1:], minlength=64)
    assert surprise(counts, 4000 / 64) < 6, "a token says something about the next one of the same request"


def test_children_are_strangers(impl):
    """n = 4 with seed 7 is four requests with the seeds 7, 8, 9, 10. None of them may repeat another one's noise."""
    sampler = impl.PerRequestSampler()
    grid = np.array([[draw(impl, sampler, t, s, np.zeros(5000)) for t in range(40)] for s in range(7, 15)])
    assert len(np.unique(grid)) > 280, (
        f"8 seeds x 40 positions among 5,000 equal tokens should give about 310 different ones, got "
        f"{len(np.unique(grid))}. This looks like *Seed plus position*: seed 7 at position 1 is seed 8 at position 0"
    )


def test_long_seeds_are_seeds_of_their_own(impl):
    """Seeds of more than 32 bits, whose upper half is another one's position."""
    sampler, flat = impl.PerRequestSampler(), np.zeros(5000)
    same = [t for t in range(1, 9) if draw(impl, sampler, 0, 7 + (t << 32), flat) == draw(impl, sampler, t, 7, flat)]
    assert len(same) < 2, (
        f"seed 7 + {same[0]} * 2**32 at position 0 draws what seed 7 draws at position {same[0]}. default_rng lays a "
        "list's integers end to end in words of 32 bits, so a long seed reaches into what stands behind it. This looks "
        "like *A long seed before the position*"
    )
    tokens = {draw(impl, sampler, 0, 7 + (t << 32), flat) for t in range(9)}
    assert len(tokens) > 6, f"9 seeds that differ above their 32nd bit draw {len(tokens)} different tokens of 5,000"


@pytest.mark.parametrize("change", [1.0, -1.0, -np.inf], ids=["raised", "lowered", "masked"])
def test_a_token_takes_only_its_own(impl, change):
    """One logit changes. Nobody else's fate may."""
    rng, sampler, moved = np.random.default_rng(11), impl.PerRequestSampler(), 0
    for seed in range(400):
        logits, token = rng.normal(size=12), int(rng.integers(12))
        other = np.where(np.arange(12) == token, logits + change, logits)
        before, after = draw(impl, sampler, 3, seed, logits), draw(impl, sampler, 3, seed, other)
        allowed = {before, token} if change > 0 else {before} if before != token else set(range(12))
        assert after in allowed, (
            f"seed {seed}: token {token} was changed by {change}, and {before} became {after}. "
            "This looks like *Where a number falls*, or like *Noise for the survivors*"
        )
        moved += before != after
    assert moved, "nothing ever changes: the logits are not looked at"


def test_changes_as_predicted(impl):
    first, second = impl.predicted_changes()
    before, after = np.zeros(1000), np.append(np.log(2), np.zeros(999))
    sums = [np.cumsum(np.exp(each) / np.exp(each).sum()) for each in (before, after)]
    falls = np.array([[np.searchsorted(each, np.random.default_rng(s).random()) for each in sums] for s in range(1000)])
    fallen = (falls[:, 0] != falls[:, 1]).mean()
    sampler = impl.PerRequestSampler()
    yours = np.mean([draw(impl, sampler, 0, s, before) != draw(impl, sampler, 0, s, after) for s in range(1000)])
    assert yours < 0.01, f"of 1,000 requests {yours:.1%} get another token; one in a thousand has to"
    assert abs(first - fallen) < 0.15 and abs(second - yours) < 0.02, (
        f"you predicted {first:.3f} and {second:.3f}. One uniform number among running sums: {fallen:.3f}; yours: "
        f"{yours:.3f}. Which boundaries move when the first token gets wider?"
    )


# ---- greedy, no seed, the end --------------------------------------------------------------------------------------


def test_greedy(impl):
    sampler = impl.PerRequestSampler()
    with np.errstate(all="raise"):
        for seed in (None, 0, 7):
            for position in (0, 3):
                got = draw(impl, sampler, position, seed, [1.0, 7.0, -np.inf, 7.0], 0.0)
                assert got == 1, f"the largest logit, the lowest id of two: 1, got {got}"
    assert len(sampler) == 0, "a greedy request needs no stream"


def test_without_a_seed(impl):
    made = []
    for _ in range(2):  # whoever seeds the global generators expects nothing from them
        np.random.seed(0)
        random.seed(0)
        sampler = impl.PerRequestSampler()
        a, b = ([draw(impl, sampler, t, None, name=name) for t in range(20)] for name in "ab")
        assert a != b, "two requests without a seed get the same tokens. *One seed for those who have none*"
        again = [draw(impl, sampler, t, None, name="a") for t in range(20)]
        agree(again, a, "No seed, drawn a second time: as if it had one of its own")
        made.append(a)
    assert made[0] != made[1], "fresh entropy: another run must give other tokens"


def test_after_the_end_an_id_may_come_back(impl):
    sampler = impl.PerRequestSampler()
    first = [draw(impl, sampler, t, None, name="A") for t in range(20)]
    sampler.finish("A")
    sampler.finish("somebody else")
    second = [draw(impl, sampler, t, None, name="A") for t in range(20)]
    assert first != second, "a new request of the same name: a new stream"
    sampler.finish("A")
    for seed in (7, 8, 7):
        got = [draw(impl, sampler, t, seed, name="A") for t in range(20)]
        agree(got, stream(impl, seed=seed), f"A new request of the same name with seed {seed}")
        sampler.finish("A")


def reach(thing):
    """How many objects hang on it."""
    seen, left = set(), [thing]
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(each, type):
            seen.add(id(each))
            left += gc.get_referents(each) if type(each).__module__ != "builtins" or gc.is_tracked(each) else []
    return len(seen)


def test_nothing_is_kept_of_the_finished(impl):
    """A server runs for months."""
    sampler = impl.PerRequestSampler()

    def serve(numbers):
        for n in numbers:
            for position in (0, 1, 1):
                draw(impl, sampler, position, [n, None][n % 2], name=f"request {n}")
            assert len(sampler) <= 1, f"one request is alive, {len(sampler)} are remembered"
            sampler.finish(f"request {n}")

    serve(range(3))
    before = reach(vars(sampler))
    serve(range(3, 300))
    grown = reach(vars(sampler)) - before
    assert len(sampler) == 0 and grown < 100, (
        f"all requests have ended, {len(sampler)} are remembered, and {grown} objects more hang on the sampler than "
        "after the first three. This looks like *Remembering the dead*"
    )


def test_the_living_are_remembered(impl):
    sampler = impl.PerRequestSampler()
    sampler.sample([impl.Row(name, None, 1.0, 0) for name in "abc"], np.zeros((3, 9)))
    assert len(sampler) == 3, f"three requests draw from entropy of their own, {len(sampler)} are remembered"
    sampler.finish("b")
    assert len(sampler) == 2


def test_refusals(impl):
    sampler = impl.PerRequestSampler()
    rows = [impl.Row("a", 1, 1.0, 0), impl.Row("b", None, 1.0, 0)]
    for shape in ((3, 50), (50,), (1, 50)):
        said = f"logits must have a row for each of the 2 requests, got shape {shape}"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            sampler.sample(rows, np.zeros(shape))
    with pytest.raises(ValueError, match=r"^request 'b' stands twice in this step$"):
        sampler.sample([*rows, rows[1]], np.zeros((3, 50)))
    assert len(sampler) == 0, "a step that is refused leaves nothing behind"
    assert sampler.sample([], np.zeros((0, 50))) == []


# ---- pocket --------------------------------------------------------------------------------------------------------


def test_it_serves_pocket(impl):
    """A seeded story, alone and in a crowd that is too big for the pool: somebody is preempted and computed anew."""
    serve, demo = load(HERE / "serve.py"), load(HERE / "demo.py")
    demo.SMALL["num_blocks"] = 26  # a shorter story than the demo's, a smaller pool
    calm = serve.served(impl)
    alone, none = demo.story(SimpleNamespace(served=lambda lab: calm), impl, 7, crowd=False, max_tokens=12)
    crowd, preempted = demo.story(serve, impl, 7, crowd=True, max_tokens=12)
    assert none == 0 and preempted > 0, f"the crowd was to be too big for the pool: {preempted} preemptions"
    assert crowd == alone, f"alone: {alone!r}; in a crowd: {crowd!r}. {LAW}"
    other, _ = demo.story(SimpleNamespace(served=lambda lab: calm), impl, 8, crowd=False, max_tokens=12)
    assert other != alone, "seed 8 tells the story of seed 7"
