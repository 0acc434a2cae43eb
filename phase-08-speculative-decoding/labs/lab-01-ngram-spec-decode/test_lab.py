"""Lab 08-01: what is copied, what stays of it, and the books that are kept of both."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
Target = load(HERE / "target.py").Target
UPSTREAM = [1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3]


def periodic(*pattern):
    """Says `pattern` for ever, whatever the text is."""
    return lambda tokens: pattern[len(tokens) % len(pattern)]


RULES = {
    "a period of four": periodic(1, 2, 3, 4),
    "a period of two": periodic(1, 2),
    "nothing comes twice": lambda tokens: 1000 + len(tokens),
    "what came before it matters": lambda tokens: (tokens[-1] * 7 + sum(tokens[-3:]) + len(tokens) // 5) % 6,
}


def places(context, min_n, max_n):
    """Where the longest end that recurs stood before: (n, indices behind those places)."""
    for n in range(min(max_n, len(context) - 1), min_n - 1, -1):
        found = [at for at in range(n, len(context)) if context[at - n : at] == context[-n:]]
        if found:
            return n, found
    return 0, []


def copying(which, n=2):
    """A proposer of the tests: copies from the place `which` (0 the earliest, -1 the latest)."""

    def propose(context, at_most):
        found = places(context, n, n)[1]
        return context[found[which] :][:at_most] if found else []

    return propose


def silent(context, at_most):
    return []


def plain(rule, prompt, num_tokens):
    """Greedy decoding, a token a pass."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(rule(tokens))
    return tokens[len(prompt) :]


def run(impl, rule, prompt=(1, 2, 3, 4, 1, 2, 3, 4), propose=None, k=4, num_tokens=40):
    target = Target(rule)
    return impl.run_speculative(target, prompt, propose or copying(0), k, num_tokens), target


# ---- drafts --------------------------------------------------------------------------------------------------------


def check_draft(impl, context, min_n, max_n, k):
    before = list(context)
    draft = impl.ngram_propose(context, min_n, max_n, k)
    assert context == before, "the caller's tokens were changed"
    assert isinstance(draft, list)
    n, found = places(context, min_n, max_n)
    allowed = [context[at : at + k] for at in found] or [[]]
    said = f"the last {n} tokens stood there before" if found else "no end of it stood there before"
    assert draft in allowed, f"{context}, n from {min_n} to {max_n}, k={k}: {said}; {allowed} can follow, got {draft}"
    return draft


def test_upstreams_own_case(impl):
    assert check_draft(impl, UPSTREAM, 3, 3, 2) in ([100, 1], [200, 1], [300, 1])
    assert check_draft(impl, UPSTREAM, 1, 5, 1) in ([100], [200], [300])


def test_whatever_the_text(impl):
    rng, sizes = np.random.default_rng(0), set()
    for _ in range(600):
        context = rng.integers(0, rng.integers(1, 5), rng.integers(0, 24)).tolist()
        min_n = int(rng.integers(1, 4))
        sizes.add(len(check_draft(impl, context, min_n, min_n + int(rng.integers(0, 3)), int(rng.integers(0, 6)))))
    assert sizes == {0, 1, 2, 3, 4, 5}


def test_the_longest_end_counts(impl):
    """This looks like *Taking the shortest end*: one token recurs in more places than two."""
    assert check_draft(impl, [1, 2, 9, 7, 2, 8, 1, 2], 1, 2, 1) == [9]
    assert check_draft(impl, [7, 2, 8, 1, 2, 9, 3, 1, 2], 1, 3, 2) == [9, 3]
    assert check_draft(impl, [7, 2, 8, 1, 2], 1, 3, 1) == [8], "two tokens do not recur, one does"
    assert check_draft(impl, [7, 2, 8, 1, 2], 2, 3, 1) == [], "one does, and is too short for min_n=2"


def test_the_end_is_no_other_place(impl):
    """This looks like *Finding the end itself*: behind it stands nothing."""
    assert check_draft(impl, [1, 2, 3], 1, 3, 4) == []
    assert check_draft(impl, [1, 2], 2, 2, 4) == [], "the whole text is its own end, and stands nowhere else"
    assert check_draft(impl, [4, 4], 1, 1, 4) == [4]


def test_places_may_overlap(impl):
    assert check_draft(impl, [5] * 5, 2, 2, 4) in ([5], [5, 5], [5, 5, 5])
    assert check_draft(impl, [1, 2, 1, 2, 1], 3, 3, 4) == [2, 1]


@pytest.mark.parametrize("context", [[], [7], [1, 2, 3, 4]])
def test_no_draft(impl, context):
    assert check_draft(impl, context, 1, 4, 4) == []
    assert impl.ngram_propose([1, 1, 1], 1, 2, 0) == [], "asked for none"
    assert impl.ngram_propose((1, 2, 1), 1, 1, 2) == [2, 1], "a tuple is a text too"


def test_where_there_is_one_place_the_engine_copies_the_same(impl):
    from types import SimpleNamespace

    from mini_vllm import NgramProposer

    rng, compared = np.random.default_rng(1), 0
    config = SimpleNamespace(prompt_lookup_min=1, prompt_lookup_max=3, num_speculative_tokens=4)
    engine = NgramProposer(SimpleNamespace(speculative_config=config), 99)
    for _ in range(300):
        context = rng.integers(0, 6, rng.integers(1, 20)).tolist()
        theirs = engine.propose([[context[-1]]], np.array([len(context)]), np.array([context]))[0]
        if len(places(context, 1, 3)[1]) <= 1:
            assert impl.ngram_propose(context, 1, 3, 4) == theirs, context
            compared += 1
    assert compared > 100


# ---- the verdict ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "answers", "tokens"),
    [
        ([], [7], [7]),
        ([5], [5, 8], [5, 8]),
        ([5], [6, 8], [6]),
        ([5, 6, 7], [5, 6, 7, 8], [5, 6, 7, 8]),
        ([5, 6, 7], [5, 6, 9, 8], [5, 6, 9]),
        ([5, 6, 7], [9, 6, 7, 8], [9]),
        ([5, 9], [5, 6, 7], [5, 6]),
        ([0, 0], [0, 0, 0], [0, 0, 0]),
    ],
)
def test_verdicts(impl, draft, answers, tokens):
    """This looks like *A draft that is right by chance* where more is kept: an answer behind a wrong draft is about
    another text."""
    before = list(draft), list(answers)
    assert impl.verify_greedy(draft, answers) == tokens
    assert (draft, answers) == before, "an argument was changed"
    assert impl.verify_greedy(tuple(draft), tuple(answers)) == tokens


@pytest.mark.parametrize(("drafts", "answers"), [(2, 2), (0, 0), (0, 2), (3, 5)])
def test_answers_that_are_missing_or_too_many(impl, drafts, answers):
    with pytest.raises(ValueError, match=f"^{drafts} drafts need {drafts + 1} answers, got {answers}$"):
        impl.verify_greedy([1] * drafts, [1] * answers)


def test_the_engine_gives_the_same_verdicts(impl):
    """2,000 drafts of up to five tokens, all at once in the engine's rejection sampler."""
    from mini_vllm import (
        RejectionSampler,
        Sampler,
        SamplingMetadata,
        SamplingParams,
        SamplingRow,
        SpecDecodeMetadata,
    )

    rng = np.random.default_rng(2)
    drafts = [rng.integers(0, 3, rng.integers(0, 6)).tolist() for _ in range(2000)]
    metadata = SpecDecodeMetadata.make_dummy(drafts)
    answers = rng.integers(0, 3, metadata.cu_num_sampled_tokens[-1])
    logits = np.eye(3)[answers]
    sampling = SamplingMetadata.from_rows([SamplingRow(SamplingParams(temperature=0.0))] * len(drafts), 3)
    theirs = RejectionSampler(Sampler()).forward(metadata, None, logits, sampling).sampled_token_ids
    start = 0
    for draft, row in zip(drafts, theirs, strict=True):
        mine = impl.verify_greedy(draft, answers[start : start + len(draft) + 1].tolist())
        assert mine == [token for token in row.tolist() if token >= 0], draft
        start += len(draft) + 1


# ---- the loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("k", [0, 1, 2, 4, 7])
def test_same_tokens(impl, name, k):
    rng = np.random.default_rng(3)
    noisy = lambda context, at_most: [RULES[name](context), *rng.integers(0, 6, at_most).tolist()][:at_most]  # noqa: E731
    for propose in (copying(0), copying(-1), noisy, silent):
        result, _ = run(impl, RULES[name], propose=propose, k=k)
        wanted = plain(RULES[name], (1, 2, 3, 4, 1, 2, 3, 4), 40)
        at = next((i for i, pair in enumerate(zip(result.tokens, wanted)) if pair[0] != pair[1]), None)  # noqa: B905
        assert result.tokens == wanted, (
            f"k={k}, {name}: {len(result.tokens)} tokens for 40; the first that plain decoding does not give: {at}"
        )


@pytest.mark.parametrize(("k", "passes"), [(0, 40), (1, 21), (2, 14), (4, 9), (8, 6)])
def test_passes_on_a_text_that_repeats(impl, k, passes):
    result, target = run(impl, RULES["a period of four"], k=k)
    assert len(target.passes) == passes, f"k={k}: rows of the passes {target.passes}"
    assert result.accepted == result.proposed == 40 - passes, "each pass gives one token more than it accepts drafts"


def test_where_nothing_comes_twice(impl):
    propose = lambda context, at_most: impl.ngram_propose(context, 2, 4, at_most)  # noqa: E731
    result, target = run(impl, RULES["nothing comes twice"], prompt=(1, 2, 3), propose=propose, num_tokens=30)
    assert (result.proposed, result.accepted) == (0, 0) and target.passes == [3] + [1] * 29


def test_drafts_that_are_always_wrong(impl):
    """As many passes as without drafts, and five times the rows."""
    wrong = lambda context, at_most: [0] * at_most  # noqa: E731
    result, target = run(impl, RULES["nothing comes twice"], prompt=(1, 2, 3), propose=wrong, num_tokens=30)
    assert (result.proposed, result.accepted) == (4 * 25 + 3 + 2 + 1, 0)
    assert target.passes == [3] + [5] * 25 + [4, 3, 2, 1], (
        "no draft can become the last token: at the end fewer are asked"
    )


def test_each_row_once(impl):
    """This looks like *Computing everything again* where there are more rows."""
    for rule in RULES.values():
        for propose in (copying(0), copying(-1), silent):
            result, target = run(impl, rule, propose=propose)
            assert sum(target.passes) == 8 + 39 + result.proposed - result.accepted, target.passes


def test_what_the_proposer_is_asked(impl):
    asked = []

    def propose(context, at_most):
        asked.append((list(context), at_most))
        draft = [2, 9, 9][: at_most - 1]
        context[:] = [-1]
        return tuple(draft)

    prompt = [1, 2]
    result, target = run(impl, periodic(1, 2), prompt=prompt, propose=propose, k=3, num_tokens=8)
    assert prompt == [1, 2] and result.tokens == [1, 2] * 4
    assert [at_most for _, at_most in asked] == [3, 3, 2], asked
    assert [context for context, _ in asked] == [[1, 2] * n + [1] for n in (1, 2, 3)], "the text so far, all of it"
    assert target.passes == [2, 3, 3, 2, 1] and (result.proposed, result.accepted) == (5, 3)


@pytest.mark.parametrize(("k", "num_tokens", "at_most"), [(3, 9, 3), (5, 4, 2)])
def test_more_drafts_than_asked_for(impl, k, num_tokens, at_most):
    greedy = lambda context, at_most: [1] * (at_most + 1)  # noqa: E731
    with pytest.raises(ValueError, match=re.escape(f"asked for at most {at_most} drafts, got {at_most + 1}")):
        run(impl, periodic(1), prompt=(1,), propose=greedy, k=k, num_tokens=num_tokens)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3])
def test_few_tokens(impl, num_tokens):
    result, target = run(impl, periodic(1, 2), prompt=(1, 2, 1, 2), num_tokens=num_tokens, k=9)
    assert result.tokens == [1, 2, 1][:num_tokens] and len(target.passes) == min(num_tokens, 2)
    assert result.num_computed_tokens == (3 + num_tokens if num_tokens else 0)


@pytest.mark.parametrize("propose", [copying(0), silent, lambda context, at_most: [0] * at_most])
def test_the_cache_can_be_used_further(impl, propose):
    """This looks like *Keeping what a rejected draft left behind*, or like forgetting one token too many."""
    for rule in RULES.values():
        result, target = run(impl, rule, propose=propose, num_tokens=13)
        text = [1, 2, 3, 4, 1, 2, 3, 4, *result.tokens]
        assert result.num_computed_tokens == len(text) - 1, "of the last token nothing is computed: it was only said"
        assert target.forward(text, result.num_computed_tokens) == [rule(text)]


def test_tokens_per_pass_as_predicted(impl):
    predicted = impl.predicted_tokens_per_pass()
    found = []
    for which in (-1, 0):
        _, target = run(impl, periodic(1, 2), prompt=(1, 2, 1, 2), propose=copying(which), k=8, num_tokens=900)
        found.append(900 / len(target.passes))
    assert predicted == pytest.approx(tuple(found), abs=0.3), (
        f"you predicted {predicted} tokens a pass for (latest, earliest); they are ({found[0]:.2f}, {found[1]:.2f})"
    )


def test_your_proposer_in_your_loop(impl):
    """A text with a refrain: at least every other token comes for free, wherever you copy from."""
    refrain = (7, 8, 9, 10, 11, 12, 13)
    rule = lambda tokens: refrain[len(tokens) % 8] if len(tokens) % 8 < 7 else 100 + len(tokens)  # noqa: E731
    propose = lambda context, at_most: impl.ngram_propose(context, 1, 3, at_most)  # noqa: E731
    result, target = run(impl, rule, prompt=(refrain * 2)[:9], propose=propose, num_tokens=63, k=4)
    assert result.tokens == plain(rule, (refrain * 2)[:9], 63)
    assert 63 / len(target.passes) >= 2.0, target.passes
