"""Lab 09-01: each op by itself, the order of any two, the hook, and the whole against the engine."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close
from course.labs import load
from mini_vllm import SamplingParams
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.sampler import Sampler

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
INF = float("inf")
PROBS = np.array([0.5, 0.3, 0.15, 0.05])
LOGITS = np.log(PROBS)


def kept(scores):
    return set(np.flatnonzero(np.asarray(scores) > -INF).tolist())


def ban(*ids):
    def banned(logits, ctx):
        logits[list(ids)] = -INF
        return logits

    return banned


class Rigged:
    """A stream in which one token gets next to no noise, so that it wins if it has any chance at all."""

    def __init__(self, winner):
        self.winner, self.calls = winner, []

    def exponential(self, scale=1.0, size=None):
        self.calls.append(size)
        noise = np.ones(size)
        noise[self.winner] = 1e-300
        return noise


def support(impl, probs, processors=(), generated=(), prompt=(), **settings):
    """The tokens that can be drawn, exactly."""
    params, logits = SamplingParams(**settings), np.log(np.asarray(probs))
    drawn = set()
    for token in range(len(logits)):
        rng = Rigged(token)
        if impl.sample(logits, params, generated, processors, rng, prompt) == token:
            drawn.add(token)
        assert rng.calls in ([len(logits)], [(len(logits),)]), f"one draw a token, of {len(logits)} numbers"
    return drawn


# ---- the ops -------------------------------------------------------------------------------------------------------


def every_op(impl):
    """Each op with a setting that does something, and the one that switches it off."""
    penalty = impl.apply_repetition_penalty
    return {
        "penalty": (lambda x: penalty(x, [1, 2], 1.5), lambda x: penalty(x, [1, 2], 1.0)),
        "temperature": (lambda x: impl.apply_temperature(x, 0.7), lambda x: impl.apply_temperature(x, 1.0)),
        "min_p": (lambda x: impl.apply_min_p(x, 0.2), lambda x: impl.apply_min_p(x, 0.0)),
        "top_k": (lambda x: impl.apply_top_k(x, 3), lambda x: impl.apply_top_k(x, 0)),
        "top_p": (lambda x: impl.apply_top_p(x, 0.6), lambda x: impl.apply_top_p(x, 1.0)),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_off_is_off(impl, dtype):
    row = np.array([3.0, -100.0, 0.0, -INF, 2.5, -7.0], dtype=dtype)
    for name, (_, off) in every_op(impl).items():
        out = off(row)
        close(out, row.astype(np.float64), f"{name}, switched off", 0)
        assert not np.shares_memory(out, row), f"{name}: a new array, also where it changes nothing"
    for k in (-1, 6, 7):
        close(impl.apply_top_k(row, k), row.astype(np.float64), f"top_k = {k}", 0)


def test_ops_leave_their_argument_alone(impl):
    rng = np.random.default_rng(0)
    for name, (on, _) in every_op(impl).items():
        for dtype in (np.float32, np.float64):
            row = rng.normal(size=9).astype(dtype)
            row[4] = -INF
            before = row.copy()
            out = on(row)
            close(row, before, f"the argument of {name}", 0)
            assert out.dtype == np.float64 and out.shape == (9,) and out[4] == -INF, f"{name}: {out}"


def test_what_stays_keeps_its_logit(impl):
    """Random rows: each op leaves a distribution whose support lies inside of what was there, the likeliest in it."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        row = rng.normal(size=20) * 3
        row[rng.choice(20, size=5, replace=False)] = -INF
        for name, (on, _) in every_op(impl).items():
            out = on(row)
            assert kept(out) <= kept(row) and not np.isnan(out).any(), name
            if name in ("min_p", "top_k", "top_p"):
                assert row.argmax() in kept(out), f"{name} never takes the likeliest token"
                assert all(out[i] == row[i] for i in kept(out)), f"{name}: what stays keeps its logit"


def test_temperature(impl):
    for temperature in (0.25, 2.0):
        wanted = PROBS ** (1 / temperature)
        got = impl.softmax(impl.apply_temperature(LOGITS, temperature))
        close(got, wanted / wanted.sum(), f"probabilities at temperature {temperature}")


def test_top_k_and_its_ties(impl):
    row = np.array([1.0, 4.0, 2.0, 2.0, 0.0])
    assert [kept(impl.apply_top_k(row, k)) for k in (1, 2, 3, 4)] == [{1}, {1, 2, 3}, {1, 2, 3}, {0, 1, 2, 3}]


def test_top_p_takes_the_token_that_crosses(impl):
    found = {p: kept(impl.apply_top_p(LOGITS[[2, 0, 3, 1]], p)) for p in (0.01, 0.45, 0.55, 0.75, 0.9, 0.97)}
    assert found == {0.01: {1}, 0.45: {1}, 0.55: {1, 3}, 0.75: {1, 3}, 0.9: {0, 1, 3}, 0.97: {0, 1, 2, 3}}
    assert len(kept(impl.apply_top_p(np.zeros(2), 0.5))) == 1, "one of two equal halves is the smallest set"


def test_min_p_follows_the_favourite(impl):
    """This looks like *Min-p on logits* where a row of certainty keeps more than its favourite."""
    assert kept(impl.apply_min_p(np.log([0.9, 0.05, 0.03, 0.02]), 0.1)) == {0}, "certain: the favourite alone"
    assert kept(impl.apply_min_p(np.log([0.3, 0.25, 0.25, 0.2]), 0.1)) == {0, 1, 2, 3}, "unsure: all"
    assert kept(impl.apply_min_p(LOGITS, 0.25)) == {0, 1, 2} and kept(impl.apply_min_p(LOGITS, 0.35)) == {0, 1}
    assert kept(impl.apply_min_p(np.array([2.0, 3.0, 3.0]), 1.0)) == {1, 2}, (
        "min_p = 1 keeps the favourite, and its equals"
    )
    assert kept(impl.apply_min_p(np.array([-INF, -400.0, -402.0]), 0.1)) == {1, 2}, (
        "far below 0, and beside a masked token"
    )


def test_the_penalty_repels_on_both_sides_of_zero(impl):
    """This looks like *Dividing whatever the sign* where -4 becomes -2: a token that was said got likelier."""
    row = np.array([4.0, -4.0, 1.0, 0.0, -INF])
    out = impl.apply_repetition_penalty(row, [0, 1, 3, 4], 2.0)
    close(out, np.array([2.0, -8.0, 1.0, 0.0, -INF]), "the logits under a penalty of 2", 0)
    before, after = impl.softmax(row), impl.softmax(out)
    assert after[1] < before[1], f"token 1 was said, and went from {before[1]:.4f} to {after[1]:.4f}"
    close(impl.apply_repetition_penalty(row, [0, 1], 0.5), np.array([8.0, -2.0, 1.0, 0.0, -INF]), "attraction", 0)
    close(
        impl.apply_repetition_penalty(np.array([2.0, -2.0]), [0, 1], 1.2),
        np.array([2 / 1.2, -2.4]),
        "README: 1.667 and -2.4",
    )


def test_a_token_counts_once(impl):
    """This looks like *Once for each occurrence* where saying a token three times makes a difference."""
    row = np.array([4.0, -4.0, 1.0])
    once, thrice = (impl.apply_repetition_penalty(row, ids, 2.0) for ids in ([0], iter([0, 0, 0])))
    close(thrice, once, "a token that was said three times, against once", 0)


@pytest.mark.parametrize("token", [-1, 3, 100])
def test_a_token_outside_is_refused(impl, token):
    """This looks like *Minus one is the last token*, which numpy believes too."""
    with pytest.raises(ValueError, match=rf"^token {token} is outside of a vocabulary of 3$"):
        impl.apply_repetition_penalty(np.ones(3), [0, token], 1.5)


def test_a_constant_that_no_softmax_sees(impl):
    """A model whose logits are all greater by 8 has the same probabilities. Four ops agree; the penalty does not."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        row = rng.normal(size=12) * 2
        for name, (on, _) in every_op(impl).items():
            if name != "penalty":
                close(impl.softmax(on(row + 8)), impl.softmax(on(row)), f"{name} on logits that are greater by 8", 1e-9)
    odds = []
    for shift in (0.0, 8.0, -2.0):
        row = np.array([2.0, 0.0]) + shift
        odds.append(float(np.exp(impl.apply_repetition_penalty(row, [0], 1.2)[0] - row[0])))
    assert odds == pytest.approx([0.7165, 0.1889, 1.0], abs=1e-4), "by what the odds of a token of logit 2 shrink"


# ---- two ops -------------------------------------------------------------------------------------------------------


def settled(impl, name, rng):
    """An op with a setting at random."""
    ids, number, share = rng.choice(6, size=2, replace=False), int(rng.integers(1, 5)), float(rng.uniform(0.2, 0.9))
    return {
        "penalty": lambda x: impl.apply_repetition_penalty(x, ids, 1 + number / 2),
        "temperature": lambda x: impl.apply_temperature(x, (0.4, 0.7, 1.6, 2.5)[number - 1]),
        "min_p": lambda x: impl.apply_min_p(x, share / 2),
        "top_k": lambda x: impl.apply_top_k(x, number),
        "top_p": lambda x: impl.apply_top_p(x, share),
    }[name]


def counterexample(impl, first, second):
    """A row on which the two orders differ, and what each of them gives; None where 300 rows show none."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        row = rng.normal(size=6) * 2
        one, two = settled(impl, first, rng), settled(impl, second, rng)
        a, b = impl.softmax(two(one(row))), impl.softmax(one(two(row)))
        if np.abs(a - b).max() > 1e-9:
            return row.round(2).tolist(), a.round(3).tolist(), b.round(3).tolist()
    return None


def test_orders_matter_as_predicted(impl):
    said = {frozenset(pair) for pair in impl.predicted_commuting()}
    pairs = {frozenset(pair) for pair in combinations(impl.OPS, 2)}
    assert said <= pairs, f"no pairs of OPS: {sorted(map(sorted, said - pairs))}"
    for pair in sorted(pairs, key=sorted):
        first, second = sorted(pair)
        found = counterexample(impl, first, second)
        if found is None:
            assert pair in said, f"you said that the order of {first} and {second} matters; in 300 rows it never did"
        else:
            row, a, b = found
            assert pair not in said, (
                f"you said that {first} and {second} commute. Logits {row}: {first} first gives {a}, {second} first {b}"
            )


# ---- the hook ------------------------------------------------------------------------------------------------------


def test_processors_run_in_their_order(impl):
    seen = []

    def double(logits, ctx):
        seen.append((logits.copy(), ctx))
        return 2 * logits

    def add(logits, ctx):
        return logits + len(ctx["generated"])

    ctx = {"prompt": [4], "generated": [1, 2, 3]}
    close(impl.Pipeline([double, add])(np.array([1.0, 5.0]), ctx), np.array([5.0, 13.0]), "doubled, then three more", 0)
    close(impl.Pipeline([add, double])(np.float32([1.0, 5.0]), ctx), np.array([8.0, 16.0]), "the other way round", 0)
    close(seen[0][0], np.array([1.0, 5.0]), "what the first processor got", 0)
    assert all(each is ctx for _, each in seen), "processors get the context itself, not a copy of it"


def test_no_processor_spoils_what_others_hold(impl):
    """This looks like *Writing into the model's row* where the caller's logits have changed."""
    row, table = np.zeros(3), np.array([5.0, 6.0, 7.0])
    before, kept_table = row.copy(), table.copy()
    out = impl.Pipeline([ban(0), lambda logits, ctx: table, ban(1)])(row, {})
    close(out, np.array([5.0, -INF, 7.0]), "what the last processor returned", 0)
    close(row, before, "the caller's logits", 0)
    close(table, kept_table, "the array that the second processor keeps", 0)
    plain = impl.Pipeline()(row, {})
    plain[:] = 1.0
    close(row, before, "the caller's logits, without any processor", 0)


def test_a_pipeline_keeps_its_own_list(impl):
    processors = [ban(0)]
    pipeline = impl.Pipeline(processors)
    processors.append(ban(1))
    for _ in range(2):
        assert kept(pipeline(np.zeros(3), {})) == {1, 2}


def test_a_forgotten_return_is_named(impl):
    for index, bad in ((0, [lambda x, c: None]), (1, [ban(0), lambda x, c: x[:2]]), (1, [ban(0), lambda x, c: 1.0])):
        with pytest.raises(ValueError, match=rf"^processor {index} gave no logits of shape \(3,\)$"):
            impl.Pipeline(bad)(np.zeros(3), {})


# ---- the whole -----------------------------------------------------------------------------------------------------


def test_filters_see_the_temperature(impl):
    """This looks like *Filtering before the temperature* where the support is the one of temperature 1."""
    assert support(impl, PROBS, temperature=2.0, top_p=0.75) == {0, 1, 2}
    assert support(impl, PROBS, temperature=0.5, top_p=0.9) == {0, 1}
    assert support(impl, PROBS, temperature=2.0, min_p=0.65) == {0, 1}
    assert support(impl, PROBS, top_p=0.9) == {0, 1, 2} and support(impl, PROBS, min_p=0.65) == {0}


def test_filters_in_the_order_of_the_release(impl):
    """This looks like *Min-p last* where three tokens are left of six, and like top-p first where two are of four."""
    six = [0.4, 0.3, 0.15, 0.05, 0.05, 0.05]
    assert support(impl, six, top_p=0.8, min_p=0.3) == {0, 1}
    assert support(impl, [0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.5) == {0}
    assert support(impl, six) == set(range(6)), "neutral settings leave the row alone"


def test_a_ban_takes_no_place(impl):
    """This looks like *Masking at the end*: the two that may stay were the two that are forbidden."""
    assert support(impl, PROBS, [ban(0, 1)], top_k=2) == {2, 3}
    assert support(impl, PROBS, [ban(0, 1)], top_p=0.5) == {2}
    assert support(impl, PROBS, [ban(0)], min_p=0.6) == {1}
    assert support(impl, PROBS, [ban(0, 1, 2)], top_k=1, top_p=0.1, min_p=1.0) == {3}
    late = impl.apply_top_k(LOGITS, 2)
    assert not kept(ban(0, 1)(late, {})), "after top-k 2 the same ban leaves nothing"


def test_greedy_knows_bans_and_penalties(impl):
    """This looks like *Greedy before the penalty* where the token that was said is said again."""
    row, greedy = np.array([1.0, 4.0, 3.0, 3.0]), SamplingParams(temperature=0.0)
    repelled = SamplingParams(temperature=0.0, repetition_penalty=1.5)
    rng = Rigged(0)
    assert impl.sample(row, greedy, rng=rng) == 1
    assert impl.sample(row, greedy, processors=[ban(1)], rng=rng) == 2, "the lowest id of equal ones"
    assert impl.sample(row, repelled, [1], rng=rng) == 2, "4 / 1.5 is less than 3"
    assert impl.sample(row, repelled, prompt=[1], rng=rng) == 2, "This looks like *Only what was generated*"
    assert type(impl.sample(row, greedy)) is int and rng.calls == [], "greedy draws nothing"


def test_the_penalty_works_on_what_processors_left(impl):
    def lift(logits, ctx):
        assert ctx["prompt"] == [3] and ctx["generated"] == [0]
        close(logits, np.array([1.0, 2.5, 0.0, 0.0]), "what a processor gets: the model's own logits", 0)
        return logits + np.array([3.0, 0.0, 0.0, 0.0])

    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert impl.sample(np.array([1.0, 2.5, 0.0, 0.0]), params, (0,), [lift], prompt=(3,)) == 1, "(1 + 3) / 2 < 2.5"
    both = impl.sample(np.array([3.0, 1.0, 0.0, 0.0]), params, (0,), prompt=(0,))
    assert both == 0, "a token of the prompt that was generated again counts once: 3 / 2 > 1 > 3 / 4"
    assert support(impl, PROBS, generated=[0], repetition_penalty=4.0, top_k=2) == {1, 2}, "penalty before top-k"


def test_the_draw(impl):
    row = np.random.default_rng(4).normal(size=40)
    probs = impl.softmax(row)
    for seed in range(20):
        wanted = int(np.argmax(probs / np.random.default_rng(seed).exponential(size=40)))
        got = (
            impl.sample(row, SamplingParams(seed=seed)),
            impl.sample(row, SamplingParams(), rng=np.random.default_rng(seed)),
        )
        assert got == (wanted, wanted) and type(got[0]) is int
    mine, theirs = np.random.default_rng(9), np.random.default_rng(9)
    for _ in range(3):
        impl.sample(row, SamplingParams(top_k=3, seed=1), rng=mine)
        theirs.exponential(size=40)
    assert mine.bit_generator.state == theirs.bit_generator.state, "one draw a token, whatever was filtered out"
    assert len({impl.sample(row, SamplingParams()) for _ in range(60)}) > 5, "no seed: fresh randomness"


def test_rows_that_cannot_be_sampled(impl):
    row, nan = np.zeros(3), np.array([0.0, float("nan"), 1.0])
    for settings in ({}, {"temperature": 0.0}):
        params = SamplingParams(**settings)
        with pytest.raises(ValueError, match=r"^NaN in the logits$"):
            impl.sample(nan, params)
        with pytest.raises(ValueError, match=r"^NaN in the logits$"):
            impl.sample(row, params, processors=[lambda logits, ctx: nan])
        with pytest.raises(ValueError, match=r"^every token is masked$"):
            impl.sample(row, params, processors=[ban(0, 2), ban(1)])


def test_it_changes_nothing(impl):
    row, generated, prompt = LOGITS.astype(np.float32), [0, 0], [2]
    before = row.copy()
    impl.sample(
        row, SamplingParams(temperature=0.5, repetition_penalty=2.0, top_k=2), generated, [ban(1)], None, prompt
    )
    close(row, before, "the model's logits", 0)

    def careless(logits, ctx):
        logits[:] = 0.0
        ctx["generated"].append(3), ctx["prompt"].clear()
        return logits

    impl.sample(row, SamplingParams(temperature=0.0), generated, [careless], None, prompt)
    close(row, before, "the model's logits, behind a careless processor", 0)
    assert (generated, prompt) == ([0, 0], [2]), "what the engine knows of the request"


# ---- the engine ----------------------------------------------------------------------------------------------------


def test_agrees_with_the_engines_sampler(impl):
    rng = np.random.default_rng(5)
    for case in range(80):
        row = rng.normal(size=64) * 3
        prompt, generated = rng.integers(64, size=5).tolist(), rng.integers(64, size=8).tolist()
        biased = {int(token): float(rng.normal() * 4) for token in rng.integers(64, size=3)}
        params = SamplingParams(
            temperature=float(rng.choice([0.0, 0.6, 1.0, 1.7])), top_k=int(rng.choice([0, 5, 20])),
            top_p=float(rng.choice([1.0, 0.9, 0.6])), min_p=float(rng.choice([0.0, 0.05, 0.3])),
            repetition_penalty=float(rng.choice([1.0, 1.5, 0.8])), logit_bias=biased,
        )  # fmt: skip

        def bias(logits, ctx, biased=biased):
            logits[list(biased)] += list(biased.values())
            return logits

        theirs = SamplingRow(params, prompt, generated, np.random.default_rng(case))
        (wanted,) = Sampler().forward(row[None], SamplingMetadata.from_rows([theirs], 64)).sampled_token_ids
        got = impl.sample(row, params, generated, [bias], np.random.default_rng(case), prompt)
        assert got == wanted, f"case {case}, {params.temperature=}: you chose {got}, the engine {wanted}"


def test_it_serves_pocket(impl):
    """Four requests in one batch, each with its own settings; the tokens are those of the engine's own sampler."""
    from mini_vllm import LLM

    llm = LLM(str(POCKET), dtype="float64")
    settings = (
        {"temperature": 0.0, "repetition_penalty": 1.3}, {"temperature": 0.9, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 1.3, "top_k": 40, "repetition_penalty": 1.1}, {"temperature": 0.7},
    )  # fmt: skip
    params = [SamplingParams(max_tokens=6, seed=seed, **each) for seed, each in enumerate(settings)]
    chats = [[{"role": "user", "content": "Tell me a story about a fox."}]] * 4
    wanted = [each.outputs[0].text for each in llm.chat(chats, params, use_tqdm=False)]
    calls = []

    def counted(*args):
        calls.append(args)
        return impl.sample(*args)

    with load(HERE / "serve.py").serving(llm, counted):
        found = [each.outputs[0].text for each in llm.chat(chats, params, use_tqdm=False)]
    assert found == wanted and len(set(found)) == 4
    assert len(calls) == 24, "every token was yours"
