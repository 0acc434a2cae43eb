"""Lab 09-02: runs of real vLLM with n > 1, the arithmetic that predicts them, and what the candidates are worth."""

from __future__ import annotations

import json
import lzma
import random
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
RUNS = {
    arm: json.loads((HERE / "captured" / f"cpu-{arm}.json").read_text(encoding="utf-8"))
    for arm in ("shared", "unshared", "seeds", "times")
}
RUNS["votes"] = json.loads(lzma.decompress((HERE / "captured" / "cpu-votes.json.xz").read_bytes()))
SHARED, UNSHARED = RUNS["shared"]["rows"], RUNS["unshared"]["rows"]
TAIL, SEEDS, VOTES = RUNS["shared"]["tail"], RUNS["seeds"]["seeds"], RUNS["votes"]["votes"]


def named(row):
    return f"n={row['n']} P={row['prompt_len']} L={row['output_len']}"


# ---- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", SHARED, ids=named)
def test_the_hit_rate_of_the_real_engine(impl, row):
    """This looks like *A rate of requests* where 0.75 is expected: the counters count tokens."""
    assert impl.expected_hit_rate(row["n"], row["prompt_len"]) == pytest.approx(row["hits"] / row["queries"], abs=1e-12)
    assert row["hits"] == (row["n"] - 1) * impl.cached_tokens(row["prompt_len"]), "each child but the first"


def test_hit_rates(impl):
    """This looks like *The whole prompt* where 512 tokens give 0.75: the last token has to be computed."""
    rates = [impl.expected_hit_rate(4, prompt_len) for prompt_len in (1, 9, 16, 17, 33, 512, 513, 2048)]
    assert rates == pytest.approx([0, 0, 0, 0.7059, 0.7273, 0.7266, 0.7485, 0.7441], abs=1e-4)
    assert impl.expected_hit_rate(1, 512) == 0, "an only child finds nothing"
    assert impl.expected_hit_rate(16, 5000) < 15 / 16, "(n - 1) / n is the limit"
    assert [impl.cached_tokens(33, size) for size in (1, 8, 32, 33, 64)] == [32, 32, 32, 0, 0]
    assert impl.expected_hit_rate(2, 100, 64) == 0.32


# ---- what is held --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "shared"), [(SHARED, True), (UNSHARED, False)], ids=["shared", "unshared"])
def test_the_cost_on_the_real_engine(impl, rows, shared):
    """Tokens that vLLM computed, and the most blocks that it held, in either arm."""
    for row in rows:
        n, prompt_len, output_len = row["n"], row["prompt_len"], row["output_len"]
        cost = impl.parallel_cost(n, prompt_len, output_len, shared)
        computed = row["computed"] - n * (output_len - 1)
        found = f"{named(row)}: you say {tuple(cost)}, vLLM computed {computed} tokens of prompts and held "
        assert cost.prefill_tokens == computed, found + f"{row['peak_blocks']} blocks"
        in_step = shared or n * prompt_len <= 2048  # with more than the budget some children end before others
        assert row["peak_blocks"] in range(cost.peak_blocks - (0 if in_step else n // 4), cost.peak_blocks + 1), (
            found + f"{row['peak_blocks']} blocks. One too many a child looks like *Room for the last token*"
        )


def test_costs(impl):
    assert impl.parallel_cost(4, 2000, 100, False) == (8000, 4 * 132)
    assert impl.parallel_cost(4, 2000, 100, True) == (2048, 124 + 4 * 8)
    assert impl.parallel_cost(1, 2000, 100, True) == (2000, 132) == impl.parallel_cost(1, 2000, 100, False)
    assert impl.parallel_cost(3, 10, 7, True, block_size=4) == (14, 2 + 3 * 2), "another block size"
    assert impl.parallel_cost(3, 10, 8, True, block_size=4) == (14, 2 + 3 * 3)
    assert impl.parallel_cost(3, 10, 1, False, block_size=5) == (30, 6)
    assert impl.held_blocks(0, 2000, 2050, True) == 0, "when the last child ends, the prompt is free too"


def test_one_child_holds_the_prompt(impl):
    """Four stories behind a long prompt, each until its end, as vLLM ran them."""
    prompt_len, steps = TAIL["prompt_len"], TAIL["steps"]
    for at, step in enumerate(steps):
        held = impl.held_blocks(step["running"], prompt_len, prompt_len + at, True)
        assert held == step["blocks"], (
            f"step {at}: {step['running']} children of {prompt_len + at} tokens hold {step['blocks']} blocks; you say "
            f"{held}. This looks like *A share of the prompt*"
        )
    assert [step["running"] for step in (steps[0], steps[-1])] == [4, 1]
    assert steps[-1]["blocks"] > 0.6 * max(step["blocks"] for step in steps), "one of four, and most of the memory"


def test_time_follows_the_tokens(impl):
    """Medians of vLLM's seconds without the cache, over those with it; beside it the ratio of your prompt tokens."""
    taken = {tuple(row[key] for key in ("n", "prompt_len", "output_len", "shared")): median(row["seconds"])
             for row in RUNS["times"]["times"]}  # fmt: skip
    ratios = {}
    for shape in ((4, 1600, 1), (16, 1600, 1), (4, 1600, 48), (16, 1600, 48), (16, 100, 48)):
        one, many = (impl.parallel_cost(*shape, shared).prefill_tokens for shared in (True, False))
        ratios[shape] = many / one, taken[(*shape, False)] / taken[(*shape, True)]
    for (n, prompt_len, output_len), (tokens, seconds) in ratios.items():
        if output_len == 1:
            assert seconds == pytest.approx(tokens, rel=0.12), f"n={n}: prompts alone, so time is tokens"
        else:
            assert 1.2 < seconds < tokens, f"n={n}, P={prompt_len}: what is written shares nothing"
    assert [round(seconds, 1) for _, seconds in ratios.values()] == [4.2, 14.0, 2.7, 4.8, 1.4]


# ---- seeds ---------------------------------------------------------------------------------------------------------


def test_new_stories_as_predicted(impl):
    first, second = SEEDS["seed 7"], SEEDS["seed 8"]
    new = [text for text in second if text not in first]
    predicted = impl.predicted_new_stories()
    assert predicted == len(new), (
        f"you predicted {predicted}. New are {len(new)}: {new}. Look at the children's seeds (captured/cpu-seeds.json)"
    )
    assert SEEDS["n = 4 at temperature 0"] == "n must be 1 when using greedy sampling, got 4."
    assert len(set(first)) == 4 and first == SEEDS["seed 7 again"] == SEEDS["one each, seeds 7 to 10"]


def test_seeds_that_share_no_child(impl):
    """This looks like *The next seed*: seeds 7 and 8 have three of four children in common."""
    rng = random.Random(0)
    seeds = [*range(40), 2**14, 2**14 + 1, 2**28, 2**40, 2**40 - 1, *(rng.randrange(2**40) for _ in range(40))]
    sent = [impl.engine_seed(seed) for seed in seeds]
    assert all(type(each) is int and 0 <= each < 2**62 for each in sent), "what an engine takes"
    assert sent == [impl.engine_seed(seed) for seed in seeds], "the same seed, the same stream"
    for (one, a), (two, b) in combinations(zip(seeds, sent, strict=True), 2):
        assert abs(a - b) >= impl.MAX_N, f"seeds {one} and {two} become {a} and {b}: with n = {impl.MAX_N} they meet"


# ---- what a choice is worth ----------------------------------------------------------------------------------------


def says(number):
    return f"With 16 tokens per block, 99 tokens need {number} block{'s' * (number != 1)}."


def test_vote(impl):
    assert impl.vote([says(7), says(8), says(7)]) == 7
    assert impl.vote([says(1), says(12), says(1)]) == 1, "one block, in the singular"
    cut = "With 16 tokens per block, 99 tokens need 7"
    assert impl.vote([cut, cut, cut, says(8)]) == 8, "This looks like *Counting what was cut*"
    assert impl.vote([says(7) + " And need 3 blocks of wood.", "need 5 blocks.", "x"]) == 5
    assert impl.vote([]) is None and impl.vote(["I do not know that one.", cut]) is None
    answers = [says(30), says(4), says(4), says(100)]
    assert impl.vote(answers) == 4 and answers == [says(30), says(4), says(4), says(100)]
    tied = [says(3), says(9), says(9), says(3), says(2)]
    assert impl.vote(tied) in (3, 9) and impl.vote(tied) == impl.vote(list(tied))


def right(impl, answers_of):
    return sum(impl.vote(answers_of(row)) == -(-row["tokens"] // 16) for row in VOTES)


def test_the_margin_as_predicted(impl):
    greedy, voted = right(impl, lambda row: [row["greedy"]]), right(impl, lambda row: row["drawn"])
    predicted = impl.predicted_margin()
    assert abs(predicted - (voted - greedy)) <= 3, (
        f"you predicted {predicted:+}. Of a hundred the greedy answer is right {greedy} times, the vote {voted} times. "
        "What does a vote take away, and what does it leave?"
    )


def test_what_a_vote_is_worth(impl):
    """The table of the README."""
    single = sum(right(impl, lambda row, i=i: row["drawn"][i : i + 1]) for i in range(16)) / 16
    assert single == pytest.approx(79.75, abs=0.01)
    assert right(impl, lambda row: [row["greedy"]]) == 87
    for n, wanted, ties in ((4, 87, 4), (8, 88, 2), (16, 88, 1)):
        voted = right(impl, lambda row, n=n: row["drawn"][:n])
        assert abs(voted - wanted) <= ties, f"a vote of {n} is right {voted} times; here {wanted}, up to {ties} by ties"


# ---- our engine, and a run of your own -----------------------------------------------------------------------------


def test_the_small_engine_costs_the_same(impl):
    """`mini_vllm` on its toy model: tokens computed and blocks held, with and without the cache."""
    from mini_vllm import LLM, SamplingParams

    for shared in (True, False):
        llm = LLM(enable_prefix_caching=shared, num_blocks=200)
        scheduler = llm.llm_engine.scheduler
        pool, plan, steps = scheduler.kv_cache_manager.block_pool, scheduler.schedule, []

        def planned(pool=pool, plan=plan, steps=steps):
            output = plan()
            steps.append((output.total_num_scheduled_tokens, pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()))
            return output

        scheduler.schedule = planned
        params = SamplingParams(n=4, seed=3, max_tokens=24, ignore_eos=True)
        llm.generate([{"prompt_token_ids": [i % 100 for i in range(100)]}], params, use_tqdm=False)
        cost = impl.parallel_cost(4, 100, 24, shared)
        assert cost == (sum(tokens for tokens, _ in steps) - 4 * 23, max(held for _, held in steps))


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About half a minute: starts vLLM on models/pocket."""
    _, result = real_run(str(POCKET), "--arm", "shared")
    for row in result["rows"]:
        assert impl.expected_hit_rate(row["n"], row["prompt_len"]) == pytest.approx(row["hits"] / row["queries"])
