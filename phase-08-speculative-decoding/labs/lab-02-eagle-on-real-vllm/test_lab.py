"""Lab 08-02: counters, timings, and what they allow to be said."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
RUNS = {
    arm: {row["kind"]: row for row in json.loads((HERE / "captured" / f"cpu-{arm}.json").read_text("utf-8"))["rows"]}
    for arm in ("none", "ngram", "draft")
}
LINES = [json.loads(line) for line in (HERE / "captured" / "h100-steps.jsonl").read_text("utf-8").splitlines()]
H100 = [line for line in LINES if "batch" in line]
BATCHES = (1, 8, 32, 128, 256)
# Three published EAGLE-3 heads, three drafts, MT-Bench, greedy: mean length and how often the first i drafts were kept.
PUBLISHED = {
    "Llama-3.1-8B": (2.60, (0.7296, 0.5208, 0.3545)),
    "Qwen3-8B": (2.26, (0.6541, 0.3993, 0.2020)),
    "gpt-oss-20b": (2.56, (0.7165, 0.5120, 0.3337)),
}
# (mean acceptance length, tokens a step over all steps)
POCKET_TABLE = {
    ("ngram", "glossary"): (1.32, 1.01),
    ("ngram", "again"): (3.63, 1.78),
    ("ngram", "json"): (1.73, 1.07),
    ("ngram", "story"): (1.09, 1.01),
    ("draft", "glossary"): (3.67, 3.46),
    ("draft", "again"): (3.53, 3.32),
    ("draft", "json"): (3.39, 3.26),
    ("draft", "story"): (2.93, 2.78),
}


def row_of(arm, batch, accept="none"):
    return next(row for row in H100 if (row["arm"], row["batch"], row["accept"]) == (arm, batch, accept))


def counted(drafts, draft_tokens, per_position):
    return {
        "drafts": drafts,
        "draft_tokens": draft_tokens,
        "accepted": sum(per_position),
        "accepted_per_pos": per_position,
    }


def timed(arm, batch, *ms_per_step):
    return {"arm": arm, "batch": batch, "ms_per_step": list(ms_per_step)}


# ---- counters ------------------------------------------------------------------------------------------------------


def test_what_the_counters_say(impl):
    row = counted(10, 30, [8, 6, 3])
    before = copy.deepcopy(row)
    found = impl.acceptance(row)
    assert found.length == pytest.approx(2.7), "the model's own token is a token of the step"
    assert found.rate == pytest.approx(17 / 30)
    assert found.by_position == pytest.approx((0.8, 0.6, 0.3))
    assert found.conditional == pytest.approx((0.8, 0.75, 0.5))
    assert row == before and isinstance(found.by_position, tuple) and isinstance(found.conditional, tuple)


def test_drafts_that_were_shorter(impl):
    """This looks like *One denominator for all*: 10 steps had 16 drafts, not 30."""
    found = impl.acceptance(counted(10, 16, [5, 2, 0]))
    assert (found.length, found.rate) == pytest.approx((1.7, 7 / 16))
    assert found.by_position == pytest.approx((0.5, 0.2, 0.0)) and found.conditional == pytest.approx((0.5, 0.4, 0.0))


def test_a_draft_that_nobody_reached(impl):
    assert impl.acceptance(counted(4, 12, [2, 0, 0])).conditional == pytest.approx((0.5, 0.0, 0.0))
    assert impl.acceptance(counted(1, 1, [1])).conditional == (1.0,)


@pytest.mark.parametrize("row", [{"tokens": 5}, counted(0, 0, [0, 0])])
def test_no_drafts(impl, row):
    with pytest.raises(ValueError, match="no drafts were judged"):
        impl.acceptance(row)


def test_steps_without_drafts_are_steps(impl):
    """This looks like *Steps that had no drafts*: vLLM's mean leaves them out, the user waits for them."""
    assert impl.tokens_per_step({"tokens": 64, "steps": 32}) == 2.0
    assert impl.tokens_per_step({"tokens": 720, "steps": 90, "batch": 8}) == 1.0
    for arm in ("ngram", "draft"):
        for row in RUNS[arm].values():
            if row["drafts"]:
                assert 1 <= impl.tokens_per_step(row) <= impl.acceptance(row).length + 1e-9
    assert impl.tokens_per_step(RUNS["none"]["json"]) == 1.0


def test_what_pocket_says(impl):
    """The table of the page: real drafts, real verdicts, on the CPU."""
    table = {
        (arm, kind): (round(impl.acceptance(row).length, 2), round(impl.tokens_per_step(row), 2))
        for arm in ("ngram", "draft")
        for kind, row in RUNS[arm].items()
    }
    assert table == POCKET_TABLE


def test_the_heads_that_were_published(impl):
    """Means of the three positions, from upstream's own regression test; the last two figures are in its file."""
    for length, rates in PUBLISHED.values():
        row = counted(10_000, 30_000, [round(10_000 * rate) for rate in rates])
        found = impl.acceptance(row)
        assert found.length == pytest.approx(length, abs=0.01) and found.by_position == pytest.approx(rates)
        assert found.conditional[0] > found.conditional[1] > found.conditional[2], "later drafts are worse ones"


# ---- one number for a drafter --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_alpha_there_and_back(impl, k):
    for alpha in (0.0, 0.05, 0.3, 0.5, 0.718, 0.9, 0.999, 1.0):
        length = sum(alpha**drafts for drafts in range(k + 1))
        assert impl.solve_alpha(length, k) == pytest.approx(alpha, abs=1e-9), f"k={k}, {length} tokens"


def test_alpha_of_published_heads(impl):
    found = [impl.solve_alpha(length, 3) for length, _ in PUBLISHED.values()]
    assert found == pytest.approx([0.7171, 0.6251, 0.7069], abs=1e-4)


@pytest.mark.parametrize(("length", "k"), [(5.0, 3), (0.9, 3), (1.0, 0), (4.01, 3)])
def test_a_length_that_cannot_be(impl, length, k):
    with pytest.raises(ValueError, match=f"^no probability gives {length} tokens with {k} drafts$"):
        impl.solve_alpha(length, k)


# ---- what a step costs ---------------------------------------------------------------------------------------------


def test_one_disturbed_timing(impl):
    """This looks like *One disturbed timing* where the outlier is in the answer."""
    assert impl.step_ms(timed("none", 1, 8.0, 90.0, 9.0)) == 9.0
    assert impl.step_ms(timed("none", 1, 90.0, 8.0, 8.0)) == 8.0


def test_where_nothing_is_won_or_lost(impl):
    plain, drafted = timed("none", 8, 5.0, 5.0, 5.0), timed("eagle", 8, 8.0, 8.0, 8.0)
    before = copy.deepcopy((plain, drafted))
    assert impl.break_even(plain, drafted) == pytest.approx(1.6)
    assert impl.predict(plain, drafted, 1.6) == pytest.approx(1.0)
    assert impl.predict(plain, drafted, 3.2) == pytest.approx(2.0) and impl.predict(plain, drafted, 1.0) < 1
    assert (plain, drafted) == before


def test_two_batches_cannot_be_compared(impl):
    for function in (impl.break_even, lambda a, b: impl.predict(a, b, 2.0)):
        with pytest.raises(ValueError, match=r"^batch 8 beside batch 32$"):
            function(timed("none", 8, 5.0), timed("eagle", 32, 8.0))


def test_break_even_on_an_h100(impl):
    found = [impl.break_even(row_of("none", batch), row_of("eagle3-k3", batch)) for batch in BATCHES]
    assert found == pytest.approx([1.34, 1.42, 1.32, 2.11, 2.60], abs=0.005)


def test_the_prediction_holds_on_other_rows(impl):
    """From steps whose drafts were all rejected, what steps with the published rates will bring: within a fifth."""
    gains = []
    for batch in BATCHES:
        plain, other = row_of("none", batch), row_of("eagle3-k3", batch, "published")
        length = impl.tokens_per_step(other)
        assert length == pytest.approx(impl.acceptance(other).length), "every step had drafts"
        promised = impl.predict(plain, row_of("eagle3-k3", batch), length)
        gains.append(impl.predict(plain, other, length))
        assert promised == pytest.approx(gains[-1], rel=0.2), f"batch {batch}"
    assert gains == pytest.approx([1.74, 1.99, 1.91, 1.12, 0.85], abs=0.006)


def test_break_even_as_predicted(impl):
    found = tuple(impl.break_even(row_of("none", batch), row_of("eagle3-k3", batch)) for batch in (1, 256))
    predicted = impl.predicted_break_even()
    assert predicted == pytest.approx(found, rel=0.15), (
        f"you predicted that a step must bring {predicted} tokens for (1, 256) requests; measured: {found[0]:.2f}, "
        f"{found[1]:.2f}. At 256 a pass has 1,024 rows, and rows are not free there"
    )


# ---- the decision --------------------------------------------------------------------------------------------------


def test_what_to_run_on_an_h100(impl):
    rows = [row for row in H100 if row["accept"] == "none"]
    before = copy.deepcopy(rows)
    chat = impl.choose(rows, {"eagle3-k3": 2.605})
    assert chat == {1: "eagle3-k3", 8: "eagle3-k3", 32: "eagle3-k3", 128: "eagle3-k3", 256: "none"}
    assert impl.choose(rows, {"eagle3-k3": 1.35}) == dict.fromkeys(BATCHES, "none"), "upstream's worst head"
    assert impl.choose(rows, {}) == dict.fromkeys(BATCHES, "none"), "without a length an arm is no choice"
    assert rows == before


def test_the_best_of_several(impl):
    rows = [timed("none", 1, 5.0, 5.0, 5.0), timed("a", 1, 8.0, 8.0, 8.0), timed("b", 1, 9.0, 9.0, 9.0),
            timed("b", 4, 20.0, 20.0, 20.0), timed("none", 4, 7.0, 7.0, 7.0)]  # fmt: skip
    assert impl.choose(rows, {"a": 2.0, "b": 2.0}) == {1: "a", 4: "none"}
    assert impl.choose(rows, {"a": 2.0, "b": 3.0}) == {1: "b", 4: "b"}
    assert impl.choose(rows[::-1], {"a": 2.0, "b": 2.0}) == {1: "a", 4: "none"}
    assert impl.choose([], {"a": 2.0}) == {}


def test_a_gain_that_may_be_none(impl):
    """This looks like *A gain of the median alone*: one pair of timings says the opposite."""
    plain, drafted = timed("none", 1, 5.0, 5.2, 4.0), timed("eagle", 1, 9.0, 9.2, 9.1)
    assert impl.choose([plain, drafted], {"eagle": 2.0}) == {1: "none"}, "9.2 ms for two tokens, and 4.0 for one"
    assert impl.choose([plain, drafted], {"eagle": 2.35}) == {1: "eagle"}, "9.2 for 2.35 tokens beat each of the plain"
    assert impl.choose([plain, timed("eagle", 1, 9.0, 12.0, 9.1)], {"eagle": 2.35}) == {1: "none"}
    assert impl.choose([timed("none", 1, 5.0, 5.0, 6.0), timed("eagle", 1, 9.0, 10.0, 9.0)], {"eagle": 2.0}) == {
        1: "none"
    }
    sharp = [timed("none", 1, 5.0, 5.0, 5.0), timed("eagle", 1, 10.0, 10.0, 10.0)]
    assert impl.choose(sharp, {"eagle": 2.0}) == {1: "none"}, "neither wins nor loses"


# ---- our engine, and a run of your own ------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [["json"], pytest.param(["glossary", "again"], marks=pytest.mark.slow)])
def test_the_small_engine_counts_the_same(impl, kinds):
    """The same prompts under the same drafts: vLLM's counters, number for number."""
    from mini_vllm import LLM, SamplingParams

    given = load(HERE / "real_run.py")
    drafts = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    llm = LLM(str(POCKET), speculative_config=drafts, max_model_len=512, disable_log_stats=False)
    params = SamplingParams(temperature=0.0, max_tokens=given.MAX_TOKENS, ignore_eos=True)
    before, answers = given.counters(llm), []
    for kind in kinds:
        outputs = [each.outputs[0] for each in llm.generate(given.prompts(kind, answers), params, use_tqdm=False)]
        answers = [output.text for output in outputs]
        after, theirs = given.counters(llm), RUNS["ngram"][kind]
        mine = {name: given.difference(value, before[name]) for name, value in after.items()}
        before = after
        assert sum(at * token for output in outputs for at, token in enumerate(output.token_ids)) == theirs["checksum"]
        assert mine == {name: theirs[name] for name in mine}, kind
        assert impl.acceptance(mine) == impl.acceptance(theirs)


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About a minute: starts vLLM on models/pocket, with drafts from an n-gram."""
    _, result = real_run(str(POCKET), "--arm", "ngram")
    for row in result["rows"]:
        assert row["checksum"] == RUNS["none"][row["kind"]]["checksum"], "drafts changed a token"
        if row["drafts"]:
            assert 1 <= impl.tokens_per_step(row) <= impl.acceptance(row).length + 1e-9
