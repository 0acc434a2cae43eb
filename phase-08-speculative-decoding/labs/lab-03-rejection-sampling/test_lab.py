"""Lab 08-03: the law of what comes out, how much of the drafts stays, and judges that only look right."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
samplers = load(HERE / "samplers.py")
P = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
UNIFORM = np.full(5, 0.2)
PAIRS = {
    "a flat drafter": (P, UNIFORM),
    "a drafter that is too sure": (np.array([0.3, 0.3, 0.2, 0.2]), np.array([0.85, 0.05, 0.05, 0.05])),
    "several are left over": (np.array([0.05, 0.35, 0.35, 0.25]), np.array([0.7, 0.1, 0.1, 0.1])),
    "nothing in common": (np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.0, 0.0, 0.5, 0.5])),
    "the same": (P, P),
}


def rows(law, count):
    return np.tile(law, (count, 1))


def chi_square(tokens, law):
    """How far counts are from a law, in units of what chance does to them; tokens without weight must not occur."""
    seen = np.bincount(tokens, minlength=len(law))
    assert len(seen) == len(law), f"token {len(seen) - 1} in a vocabulary of {len(law)}"
    assert not seen[law == 0].any(), f"the target never says token {np.flatnonzero((law == 0) & (seen > 0))[0]}"
    expected = law[law > 0] * len(tokens)
    return ((seen[law > 0] - expected) ** 2 / expected).sum()


def says(tokens, law):
    seen = np.bincount(tokens, minlength=len(law)) / len(tokens)
    return f"came out with {np.round(seen, 3).tolist()}, the target's law is {np.round(law, 3).tolist()}"


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def judged(impl, p, q, count=40_000, seed=0, drafts=None):
    """Drafts drawn from q, or given; judged with q, or without where they are given."""
    rng = np.random.default_rng(seed)
    law = None if drafts is not None else rows(q, count)
    drafts = rng.choice(len(q), count, p=q) if drafts is None else drafts
    tokens, kept = impl.judge(drafts, rows(p, len(drafts)), law, rng)
    return drafts, tokens, kept


# ---- how often -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rate"),
    [("a flat drafter", 0.7), ("a drafter that is too sure", 0.45), ("several are left over", 0.35),
     ("nothing in common", 0.0), ("the same", 1.0)],
)  # fmt: skip
def test_how_often_at_best(impl, name, rate):
    p, q = PAIRS[name]
    before = p.copy(), q.copy()
    assert impl.acceptance_rate(p, q) == pytest.approx(rate) == impl.acceptance_rate(q, p)
    assert (p == before[0]).all() and (q == before[1]).all()
    assert isinstance(impl.acceptance_rate(p, q), float)


def test_a_draft_that_is_fixed(impl):
    for token in range(5):
        assert impl.acceptance_rate(P, np.eye(5)[token]) == pytest.approx(P[token]), "kept as often as it would be said"


def test_two_vocabularies(impl):
    with pytest.raises(ValueError, match=r"^p has 5 tokens, q has 4$"):
        impl.acceptance_rate(P, np.full(4, 0.25))


# ---- one draft -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_the_law_is_the_targets(impl, name):
    p, q = PAIRS[name]
    drafts, tokens, kept = judged(impl, p, q)
    assert chi_square(tokens, p) < 25, f"{name}: {says(tokens, p)}"
    assert (tokens[kept] == drafts[kept]).all(), "a draft that was kept is the token"


@pytest.mark.parametrize("name", PAIRS)
def test_as_many_as_can_be_kept(impl, name):
    """This looks like *Keeping a draft with p alone*, or like drawing from p and looking whether it is the draft."""
    p, q = PAIRS[name]
    _, _, kept = judged(impl, p, q)
    wanted = float(np.minimum(p, q).sum())
    assert kept.mean() == pytest.approx(wanted, abs=0.012), f"{name}: {kept.mean():.3f} kept, {wanted:.3f} can be"


@pytest.mark.parametrize("token", range(5))
def test_without_q_every_draft_gives_the_law(impl, token):
    """This looks like *A draft that nobody drew*: here it is the same in each row."""
    _, tokens, kept = judged(impl, P, UNIFORM, drafts=np.full(40_000, token))
    assert chi_square(tokens, P) < 25, f"all drafts are {token}: {says(tokens, P)}"
    assert kept.mean() == pytest.approx(P[token], abs=0.012) and (tokens[kept] == token).all()


def test_what_comes_instead(impl):
    """Of the rejected rows alone: what the drafts say too seldom, in the right shares."""
    p, q = PAIRS["several are left over"]
    _, tokens, kept = judged(impl, p, q)
    left = np.array([0.0, 0.25, 0.25, 0.15]) / 0.65
    assert chi_square(tokens[~kept], left) < 25, f"instead of rejected drafts: {says(tokens[~kept], left)}"


def test_each_row_is_judged_on_its_own(impl):
    rng = np.random.default_rng(5)
    p, q = softmax(rng.normal(0, 2, (3, 6))), softmax(rng.normal(0, 2, (3, 6)))
    which = np.arange(60_000) % 3
    drafts = np.array([rng.choice(6, 20_000, p=q[row]) for row in range(3)]).T.ravel()
    tokens, kept = impl.judge(drafts, p[which], q[which], rng)
    for row in range(3):
        assert chi_square(tokens[which == row], p[row]) < 25, f"row {row}: {says(tokens[which == row], p[row])}"
        assert kept[which == row].mean() == pytest.approx(np.minimum(p[row], q[row]).sum(), abs=0.015)
    assert abs(np.corrcoef(kept[:-3:3], kept[3::3])[0, 1]) < 0.03, "one toss for several rows"


def test_greedy_is_the_same_at_temperature_nought(impl):
    p = np.eye(7)[np.arange(700) % 7]
    drafts = np.random.default_rng(1).integers(0, 7, 700)
    for q in (None, np.eye(7)[drafts], np.full((700, 7), 1 / 7)):
        tokens, kept = impl.judge(drafts, p, q, np.random.default_rng(2))
        assert (tokens == p.argmax(axis=1)).all(), "a target that is sure says what it says"
        assert (kept == (drafts == tokens)).all()


class Noughts(np.random.Generator):
    """A stream whose numbers are all 0, which one uniform number in 9 * 10**15 is."""

    def random(self, size=None, *args, **kwargs):
        return 0.0 if size is None else np.zeros(size)

    def uniform(self, low=0.0, high=1.0, size=None):
        return low if size is None else np.full(size, low, np.float64)

    def exponential(self, scale=1.0, size=None):
        return self.random(size)

    def standard_exponential(self, size=None, *args, **kwargs):
        return self.random(size)


def test_what_has_no_weight_never_comes(impl):
    """This looks like *The toss that is exactly nought*."""
    p = np.array([0.0, 0.6, 0.4, 0.0])
    for q in (None, np.array([0.7, 0.1, 0.1, 0.1])):
        rng = Noughts(np.random.PCG64(0))
        tokens, kept = impl.judge(np.zeros(500, np.int64), rows(p, 500), None if q is None else rows(q, 500), rng)
        assert set(tokens.tolist()) <= {1, 2} and not kept.any()


def test_rounding_leaves_nothing_over(impl):
    """q is p but for rounding, here of one per cent, so that it happens: rejected, and nothing of p is left."""
    p, q = rows(P, 60_000), rows(P * 1.01, 60_000)
    rng = np.random.default_rng(3)
    drafts = rng.choice(5, 60_000, p=P)
    tokens, kept = impl.judge(drafts, p, q, rng)
    assert kept.mean() == pytest.approx(1 / 1.01, abs=0.004)
    assert chi_square(tokens, P) < 25, says(tokens, P)
    assert chi_square(tokens[~kept], P) < 25, f"of the rejected rows: {says(tokens[~kept], P)}"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arguments_and_results(impl, dtype):
    p, q = rows(P, 50).astype(dtype), rows(UNIFORM, 50).astype(dtype)
    drafts = np.arange(50) % 5
    before = [each.copy() for each in (drafts, p, q)]
    results = [impl.judge(drafts, p, q, np.random.default_rng(seed)) for seed in (4, 4, 5)]
    for array, was in zip((drafts, p, q), before, strict=True):
        assert (array == was).all() and array.dtype == was.dtype, "an argument was changed"
    tokens, kept = results[0]
    assert tokens.dtype == np.int64 and kept.dtype == bool and tokens.shape == kept.shape == (50,)
    assert (tokens == results[1][0]).all(), "the same stream, another answer: chance comes from somewhere else"
    assert (tokens != results[2][0]).any()
    impl.judge(drafts, p, None, np.random.default_rng(4))
    assert (p == before[1]).all() and (drafts == before[0]).all()
    none = impl.judge(drafts[:0], p[:0], q[:0], np.random.default_rng(4))
    assert [each.shape for each in none] == [(0,), (0,)]


# ---- a chain of drafts ---------------------------------------------------------------------------------------------


def a_chain(count, k, seed, vocab=3, with_q=True):
    """Laws of target and drafter that depend on the token before, and drafts made so: the target's table [V, V], and
    the arguments of `judge_chain`."""
    rng = np.random.default_rng(seed)
    table, sketch = softmax(rng.normal(0, 1.2, (vocab, vocab))), softmax(rng.normal(0, 1.2, (vocab, vocab)))
    last, drafts = np.zeros(count, np.int64), np.zeros((count, k), np.int64)
    p, q = np.zeros((count, k + 1, vocab)), np.zeros((count, k, vocab))
    for j in range(k):
        p[:, j], q[:, j] = table[last], sketch[last]
        pick = (q[:, j].cumsum(axis=1) < rng.random((count, 1))).sum(axis=1) if with_q else sketch[last].argmax(axis=1)
        last = drafts[:, j] = np.minimum(pick, vocab - 1)
    p[:, k] = table[last]
    return table, (drafts, p, q if with_q else None, rng)


def lengths(impl, tokens):
    there = tokens != impl.PLACEHOLDER
    assert (there[:, :-1] >= there[:, 1:]).all(), "a token behind a PLACEHOLDER"
    return there.sum(axis=1)


@pytest.mark.parametrize("with_q", [True, False])
def test_the_joint_law_of_three_tokens(impl, with_q):
    """What a request has got, filled up to three tokens by the target itself: each triple as often as it must be."""
    table, (drafts, p, q, rng) = a_chain(40_000, 2, seed=7, with_q=with_q)
    tokens = impl.judge_chain(drafts, p, q, rng)
    size, filled = lengths(impl, tokens), tokens.copy()
    for j in (1, 2):
        own = (table[filled[:, j - 1]].cumsum(axis=1) < rng.random((len(filled), 1))).sum(axis=1)
        filled[:, j] = np.where(size > j, filled[:, j], np.minimum(own, 2))
    law = [table[0, a] * table[a, b] * table[b, c] for a, b, c in itertools.product(range(3), repeat=3)]
    triples = filled @ np.array([9, 3, 1])
    assert chi_square(triples, np.array(law)) < 65, "triples of tokens come with other chances than the target gives"
    longer = size > 1
    for before in set(filled[longer, 0].tolist()):
        second = filled[longer & (filled[:, 0] == before), 1]
        assert chi_square(second, table[before]) < 25, f"the second token after {before}: {says(second, table[before])}"


def test_as_much_as_these_rows_allow(impl):
    """This looks like *No bonus*, or like *A draft behind a rejected one*."""
    _, (drafts, p, q, rng) = a_chain(40_000, 2, seed=8)
    size = lengths(impl, impl.judge_chain(drafts, p, q, rng))
    first = np.minimum(p[0, 0], q[0, 0])
    second = [np.minimum(p[drafts[:, 0] == d, 1][0], q[drafts[:, 0] == d, 1][0]).sum() for d in range(3)]
    both = float(first @ second)
    shares = np.bincount(size, minlength=4)[1:] / len(size)
    assert shares == pytest.approx([1 - first.sum(), first.sum() - both, both], abs=0.01)


@pytest.mark.parametrize(("k", "kept"), [(0, 0), (3, 3), (3, 0), (3, 1), (3, 2), (1, 1)])
def test_the_layout(impl, k, kept):
    """A sure target, so that the tokens are known: the drafts kept, one token more, PLACEHOLDER."""
    says_next = np.arange(k + 1) + 2
    drafts = says_next[:k].copy()
    drafts[kept:] = 0
    p = np.eye(9)[says_next][None].repeat(4, axis=0)
    for q in (None, np.full((4, k, 9), 1 / 9)):
        tokens = impl.judge_chain(drafts[None].repeat(4, axis=0), p, q, np.random.default_rng(0))
        assert tokens.dtype == np.int64 and tokens.shape == (4, k + 1)
        wanted = [*says_next[: kept + 1].tolist()] + [impl.PLACEHOLDER] * (k - kept)
        assert tokens.tolist() == [wanted] * 4
    assert impl.PLACEHOLDER == -1


def test_every_request_ends_where_its_own_draft_fell(impl):
    sure = np.eye(4)[[1, 2, 3]][None].repeat(5, axis=0)
    drafts = np.array([[1, 2], [1, 0], [0, 2], [1, 2], [0, 0]])
    before = drafts.copy(), sure.copy()
    tokens = impl.judge_chain(drafts, sure, None, np.random.default_rng(0))
    assert tokens.tolist() == [[1, 2, 3], [1, 2, -1], [1, -1, -1], [1, 2, 3], [1, -1, -1]]
    assert (drafts == before[0]).all() and (sure == before[1]).all(), "an argument was changed"
    assert impl.judge_chain(drafts[:0], sure[:0], None, np.random.default_rng(0)).shape == (0, 3)


@pytest.mark.parametrize(("k", "given"), [(3, 3), (0, 0), (2, 4)])
def test_rows_that_are_missing_or_too_many(impl, k, given):
    with pytest.raises(ValueError, match=f"^{k} drafts need {k + 1} rows of p, got {given}$"):
        impl.judge_chain(np.zeros((2, k), np.int64), np.full((2, given, 4), 0.25), None, np.random.default_rng(0))


def test_the_engine_keeps_as_many(impl):
    """1,500 requests in the engine's rejection sampler: drafts kept, one and two, as often as yours."""
    from mini_vllm import RejectionSampler, Sampler, SamplingMetadata, SamplingParams, SamplingRow, SpecDecodeMetadata

    _, (drafts, p, q, rng) = a_chain(1500, 2, seed=9)
    metadata = SpecDecodeMetadata.make_dummy(drafts.tolist())
    hot = SamplingParams(temperature=1.0)
    sampling = SamplingMetadata.from_rows([SamplingRow(hot, generator=rng) for _ in range(1500)], 3)
    logits, law = np.log(p.reshape(-1, 3)), q.reshape(-1, 3)
    theirs = RejectionSampler(Sampler()).forward(metadata, law, logits, sampling).sampled_token_ids
    mine = lengths(impl, impl.judge_chain(drafts, p, q, rng))
    assert np.bincount(mine, minlength=4) / 1500 == pytest.approx(
        np.bincount(lengths(impl, theirs), minlength=4) / 1500, abs=0.08
    )


# ---- other people's judges -----------------------------------------------------------------------------------------


def watched(sampler):
    """The sampler, with an eye on what it is asked."""
    asked = [0]

    def judge(drafts, p, q, rng):
        asked[0] += len(drafts)
        assert asked[0] <= 1_000_000, "more than a million rows"
        for law in (p, q):
            assert law is None or np.allclose(law.sum(axis=1), 1), "a row that is no law: whatever comes proves nothing"
        assert (p >= 0).all() and p.shape[0] == len(drafts)
        return sampler(drafts, p, q, rng)

    return judge


@pytest.mark.parametrize("name", samplers.WRONG)
def test_the_fault_is_found(impl, name):
    for seed in range(3):
        found = impl.finds_fault(watched(samplers.WRONG[name]), np.random.default_rng(seed))
        assert found is True, f"{name} was let go; what is wrong with it stands in samplers.py"


@pytest.mark.parametrize("name", samplers.RIGHT)
def test_a_right_judge_is_let_go(impl, name):
    for seed in range(8):
        found = impl.finds_fault(watched(samplers.RIGHT[name]), np.random.default_rng(seed))
        assert found is False, f"{name} keeps the law, and was called wrong"


def test_your_own_judge_is_let_go(impl):
    assert not any(impl.finds_fault(watched(impl.judge), np.random.default_rng(seed)) for seed in range(4))


# ---- the prediction ------------------------------------------------------------------------------------------------


def test_acceptance_as_predicted(impl):
    rng, drawn, likeliest = np.random.default_rng(0), [], []
    for _ in range(40):
        logits = rng.normal(0, 4, 1000)
        sketch = logits + rng.normal(0, 0.5, 1000)
        p, q = softmax(logits / 3), softmax(sketch / 3)
        drawn.append(impl.acceptance_rate(p, q))
        likeliest.append(impl.acceptance_rate(p, np.eye(1000)[q.argmax()]))
    found = float(np.mean(drawn)), float(np.mean(likeliest))
    predicted = impl.predicted_acceptance()
    assert predicted == pytest.approx(found, abs=0.07), (
        f"you predicted {predicted} for (drawn, likeliest); they are kept with ({found[0]:.2f}, {found[1]:.2f})"
    )
