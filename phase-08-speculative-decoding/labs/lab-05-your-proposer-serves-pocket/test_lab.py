"""Lab 08-05: same tokens, fewer passes, an honest price; on toy targets and on pocket."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
given = load(HERE / "given.py")
SERVED = json.loads((HERE / "captured" / "served.json").read_text(encoding="utf-8"))
ASKED = ["What is meant by prefill?", "Tell me a story about a lamp and a boat.", "What is 27 + 15?"]


class Wrong:
    """A proposer that is wrong at every second draft, so that a verdict has something to do."""

    def __init__(self, target):
        self.target = target

    def propose(self, token_ids, k):
        text = list(token_ids)
        for at in range(k):
            text.append(self.target(text) + (at % 2))
        return text[len(token_ids) :]


@pytest.mark.parametrize("k", [0, 1, 2, 4, 7])
@pytest.mark.parametrize("name", given.TARGETS)
def test_same_tokens(impl, name, k):
    target = given.TARGETS[name]
    for proposer in (impl.Proposer(), Wrong(target)):
        tokens, _ = given.decode(target, [5, 6, 7], proposer, impl.verify_greedy, k, 40)
        wanted = given.plain(target, [5, 6, 7], 40)
        at = next((i for i, (a, b) in enumerate(zip(tokens, wanted, strict=False)) if a != b), len(tokens))
        assert tokens == wanted, (
            f"k={k}, {name} target: token {at} is {tokens[at : at + 1]}, plain decoding gives {wanted[at : at + 1]}"
        )


def test_periodic_cycles(impl):
    _, cycles = given.decode(given.TARGETS["periodic"], [1, 2], impl.Proposer(), impl.verify_greedy, 4, 40)
    assert len(cycles) <= 14, f"1 2 3 4 1 2 3 4 ..., k = 4: {len(cycles)} cycles for 40 tokens, {cycles[:8]} ..."


def test_silent_when_nothing_repeats(impl):
    target = given.TARGETS["never the same"]
    _, cycles = given.decode(target, [5, 6, 7], impl.Proposer(), impl.verify_greedy, 4, 30)
    made = sum(drafted for drafted, _ in cycles)
    assert made == 0, f"every token of this text is new, and {made} drafts were made. This looks like *Padding*"


def test_propose_obeys_k(impl):
    proposer, text = impl.Proposer(), [1, 2, 3, 4] * 6
    for k in (0, 1, 3, 7):
        drafts = proposer.propose(list(text), k)
        assert isinstance(drafts, list) and len(drafts) <= k, f"asked for at most {k}, got {drafts}"
    kept = list(text)
    proposer.propose(kept, 4)
    assert kept == text, "propose changed token_ids. This looks like *Changing the text that was lent*"
    proposer.finished(kept)
    assert kept == text, "finished changed token_ids"
    assert isinstance(impl.Proposer().propose([7], 4), list), "a text of one token"


@pytest.mark.parametrize(
    ("draft", "target", "wanted"),
    [
        ([], [9], [9]),
        ([5, 9], [5, 6, 7], [5, 6]),
        ([4, 6], [5, 6, 7], [5]),
        ([5, 6], [5, 6, 7], [5, 6, 7]),
        ([6, 5, 7], [5, 6, 7, 8], [5]),
        ([1, 2, 3, 4], [1, 2, 9, 4, 5], [1, 2, 9]),
    ],
)
def test_verdicts(impl, draft, target, wanted):
    lent = list(draft), np.array(target)
    got = impl.verify_greedy(*lent)
    assert lent[0] == draft and lent[1].tolist() == target, "what is lent stays as it is"
    looks = ""
    if got == wanted[:-1]:
        looks = ". This looks like *The model's own token dropped*"
    elif (
        len(got) == len(wanted)
        and got[:-1] == wanted[:-1]
        and len(draft) >= len(wanted)
        and got[-1] == draft[len(wanted) - 1]
    ):
        looks = ". This looks like *The draft's token where the model disagrees*"
    elif len(got) > len(wanted):
        looks = ". This looks like *Going on behind a refusal*"
    assert got == wanted, f"drafts {draft}, the model says {target}: got {got}, wanted {wanted}{looks}"
    assert all(type(token) is int for token in got), f"Python ints are wanted, got {[type(t).__name__ for t in got]}"


@pytest.mark.parametrize(("draft", "target"), [([5, 6], [5, 6]), ([5], [5, 6, 7]), ([], [])])
def test_verify_refuses(impl, draft, target):
    said = f"target must have one token more than the draft: {len(draft)} drafted, {len(target)} given"
    with pytest.raises(ValueError, match=re.escape(said)):
        impl.verify_greedy(draft, np.array(target, np.int64))


@pytest.mark.parametrize(
    ("cycles", "row_cost", "draft_cost", "wanted"),
    [
        ([(4, 5)], {1: 2, 2: 2.6, 5: 3.2}, 0.0, 3.125),
        ([(0, 1), (0, 1)], {1: 2, 5: 3}, 0.0, 1.0),
        ([(4, 1), (4, 1), (0, 1)], {1: 2, 5: 3}, 0.0, 0.75),
        ([(2, 3)], {1: 2, 5: 4}, 0.0, 2.0),
        ([(2, 2), (0, 1)], {1: 1, 3: 1.5}, 0.25, 1.0),
        ([(0, 1), (4, 4)], {1: 1, 2: 1.8, 5: 2}, 0.0, 5 / 3),
        ([(9, 4)], {1: 1, 16: 4, 5: 2}, 0.0, 4 / (2 + 5 * 2 / 11)),
    ],
)
def test_predict(impl, cycles, row_cost, draft_cost, wanted):
    lent = list(cycles), dict(row_cost)
    got = impl.predict_speedup(*lent, draft_cost)
    assert lent == (cycles, row_cost), "what is lent stays as it is"
    assert draft_cost or impl.predict_speedup(cycles, row_cost) == got, "drafts cost nothing unless it is said"
    assert got == pytest.approx(wanted), (
        f"cycles {cycles}, rows {row_cost}, a draft {draft_cost}: {got}, wanted {wanted}"
    )


def test_predict_refuses(impl):
    with pytest.raises(ValueError, match=re.escape("row_cost ends at 5 rows, a cycle has 10")):
        impl.predict_speedup([(0, 1), (9, 3)], {1: 2.0, 5: 3.0})
    with pytest.raises(ValueError, match=re.escape("row_cost needs the cost of 1 row, got rows [2, 5]")):
        impl.predict_speedup([(1, 2)], {5: 3.0, 2: 2.0})


# ---- pocket --------------------------------------------------------------------------------------------------------


def test_row_cost_as_predicted(impl):
    predicted, costs = impl.predicted_row_cost(), SERVED["row_cost"]
    real = costs["5"] / costs["1"]
    assert abs(predicted / real - 1) <= 0.2, (
        f"you predicted {predicted}; five rows took {real:.2f} of one. The papers' figure for a GPU at batch 1 is 1.0; "
        "if rows shared nothing it would be 5"
    )


def test_speedup_as_predicted(impl):
    predicted, arm = impl.predicted_speedup(), SERVED["arms"]["JSON, n-gram"]
    assert abs(predicted - arm["measured"]) <= 0.1, (
        f"you predicted {predicted}; it was {arm['measured']}, with {arm['accepted']} of {arm['drafted']} drafts "
        "accepted. The drafts were free; what was not?"
    )


@pytest.fixture(scope="module")
def engines():
    return given.engine(), given.engine(4)


def test_serves_pocket(impl, engines):
    bare, drafting = engines
    watch = given.install(drafting, impl)
    for prompt in ASKED:
        wanted, made = given.serve(bare, [prompt], 16), given.serve(drafting, [prompt], 16)
        assert made.tokens == wanted.tokens, f"{prompt} Your engine: {made.tokens[0]}, plain: {wanted.tokens[0]}"
    assert watch.num_calls, "your proposer was never asked"


def test_a_text_that_repeats_is_served_in_fewer_steps(impl, engines):
    bare, drafting = engines
    given.install(drafting, impl)
    asked = given.prompts("repeating")[:2]
    wanted, made = given.serve(bare, asked, 24), given.serve(drafting, asked, 24)
    assert made.tokens == wanted.tokens
    assert len(made.cycles) <= 0.6 * len(wanted.cycles), (
        f"the answer stands in the prompt twice: {len(made.cycles)} steps of yours, {len(wanted.cycles)} without drafts"
    )


def test_finished_is_told(impl, engines):
    """The engine's promise to you: each text that ended, once, the prompt first."""
    told = []

    class Listening(impl.Proposer):
        def finished(self, token_ids):
            told.append(list(token_ids))
            return super().finished(token_ids)

    given.install(engines[1], SimpleNamespace(Proposer=Listening, verify_greedy=impl.verify_greedy))
    made = given.serve(engines[1], [*ASKED, ASKED[0]], 8)
    assert len(told) == 3 and [text[-8:] for text in told] == [ids[-8:] for ids in made.tokens[:3]]
