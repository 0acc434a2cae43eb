"""Lab 18-01: the simulator counts what the engine does, the search keeps its limit, a line leads to milliseconds."""

from __future__ import annotations

import inspect
import json
import random
import re
from pathlib import Path

import pytest

from mini_vllm import LLMEngine

HERE = Path(__file__).resolve().parent
POOL = {"num_blocks": 512, "block_size": 4, "max_num_seqs": 8}
W = [(0, 8, 24), (1, 128, 2), (1, 128, 2)]
S = [(0, 8, 6), (1, 128, 2), (1, 128, 2)]
LONELY = [(0, 256, 2)]
QUEUE = [(0, 8, 8), (1, 8, 8), (2, 8, 8)]
BUDGETS, THRESHOLDS = (40, 64, 2048), (0, 32)


def run(impl, arrivals, budget=2048, threshold=0, **more):
    knobs = {"max_num_batched_tokens": budget, "long_prefill_token_threshold": threshold}
    return impl.simulate(arrivals, **knobs, **{**POOL, **more})


def numbers(metrics):
    return metrics.total_steps, metrics.max_step_tokens, list(metrics.ttft_steps)


# ---- one run -------------------------------------------------------------------------------------------------------


def test_ttft_is_measured_from_arrival(impl):
    """Also: the engine is idle from tick 4 to tick 19, and the run is not over."""
    metrics = run(impl, [(0, 8, 4), (20, 8, 4)])
    assert list(metrics.ttft_steps) == [0, 0], "each had the engine for itself when it came: nobody waited"
    assert metrics.total_steps == 24, "16 idle ticks count: the second comes in tick 20 and takes four"
    assert numbers(run(impl, [(3, 8, 1)])) == (4, 8, [0]), "one that is answered whole in a single step"


@pytest.mark.parametrize(
    ("seats", "wanted"), [(1, (24, 8, [0, 7, 14])), (2, (16, 9, [0, 0, 6])), (3, (10, 10, [0, 0, 0]))]
)
def test_queueing_shows_up_in_ttft(impl, seats, wanted):
    metrics = run(impl, QUEUE, max_num_seqs=seats)
    assert numbers(metrics) == wanted, f"{seats} seats: who waits for a seat waits for the first token"


def test_arrivals_in_any_order(impl):
    arrivals = [(2, 8, 8), (0, 8, 8), (1, 8, 8)]
    assert numbers(run(impl, arrivals, max_num_seqs=1)) == (24, 8, [14, 0, 7]), "TTFT in the order of the arrivals"
    assert arrivals == [(2, 8, 8), (0, 8, 8), (1, 8, 8)], "the arrivals were changed"
    assert numbers(run(impl, [(10, 8, 2), (9, 8, 2)])) == (12, 9, [0, 0]), "tick 9 is before tick 10"


def test_greedily_and_past_eos(impl, monkeypatch):
    """The toy model hardly ever ends by itself; another one does, and then the ticks would tell of its answers."""
    add, asked = LLMEngine.add_request, []

    def noting(*args, **kwargs):
        asked.append(inspect.signature(add).bind(*args, **kwargs).arguments["params"])
        return add(*args, **kwargs)

    monkeypatch.setattr(LLMEngine, "add_request", noting)
    run(impl, [(0, 8, 4), (1, 8, 7)])
    assert [(each.temperature, each.ignore_eos, each.max_tokens) for each in asked] == [(0, True, 4), (0, True, 7)]


def test_spike_threshold_is_per_request_budget_is_global(impl):
    spikes = [run(impl, W, *pair).max_step_tokens for pair in ((2048, 0), (2048, 32), (40, 0), (40, 32))]
    assert spikes == [257, 65, 40, 40], "two chunks and a decode under the threshold; the budget bounds their sum"
    assert run(impl, LONELY, 2048, 32).max_step_tokens == 32


@pytest.mark.parametrize(
    ("budget", "threshold", "wanted"),
    [
        (40, 0, (9, 40, [0, 3, 6])), (40, 32, (10, 40, [0, 3, 7])), (64, 0, (7, 64, [0, 2, 4])),
        (64, 32, (7, 64, [0, 3, 4])), (2048, 0, (6, 257, [0, 0, 0])), (2048, 32, (6, 65, [0, 3, 3])),
    ],
)  # fmt: skip
def test_the_table_of_s(impl, budget, threshold, wanted):
    assert numbers(run(impl, S, budget, threshold)) == wanted


def test_prompts_share_nothing(impl):
    """Prefix caching is on by default. This looks like *Prompts out of one letter* where 125 stands for 257."""
    on, off = (run(impl, W, enable_prefix_caching=flag) for flag in (True, False))
    assert numbers(on) == numbers(off) == (24, 257, [0, 0, 0])
    crowd = [(tick, 9, 1) for tick, number in ((0, 44), (1, 256)) for _ in range(number)]
    for size, flag in ((4, True), (4, False), (1, True)):
        pool = {"num_blocks": 4000, "block_size": size, "enable_prefix_caching": flag, "max_num_seqs": 256}
        found = run(impl, crowd, budget=4096, **pool)
        assert numbers(found)[:2] == (2, 2304), (
            f"256 prompts of 9 tokens are 2304 tokens in the second step, got {found.max_step_tokens}; blocks hold "
            f"{size}" + ", and more requests come than the model has tokens" * (size == 1)
        )


def test_throughput_more_budget_never_more_steps(impl):
    budgets = (8, 16, 32, 40, 64, 128, 256, 2048)
    assert [run(impl, S, budget).total_steps for budget in budgets] == [35, 19, 11, 9, 7, 6, 6, 6]
    assert [run(impl, W, budget).total_steps for budget in budgets] == [37, *[24] * 7]


def test_a_cramped_pool_is_the_engines_business(impl):
    """Preempted and computed again: that costs steps, and the first token stays where it was."""
    arrivals = [(0, 12, 20), (0, 12, 20), (0, 12, 20)]
    ample, cramped = (run(impl, arrivals, num_blocks=blocks, enable_prefix_caching=False) for blocks in (512, 20))
    assert numbers(ample) == (20, 36, [0, 0, 0])
    assert cramped.total_steps == 27 and list(cramped.ttft_steps) == [0, 0, 0]


def test_nothing_to_serve(impl):
    with pytest.raises(ValueError, match="need at least one arrival"):
        impl.simulate([])


def test_what_the_engine_refuses_comes_out(impl):
    with pytest.raises(ValueError, match="block_size"):
        run(impl, S, block_size=0)
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        search(impl, 10**9, budgets=(64, 0))


def test_chunks_cost_as_predicted(impl):
    pairs = [(run(impl, each, 2048, 32), run(impl, each, 2048, 0)) for each in (W, LONELY)]
    extra = tuple(chunked.total_steps - whole.total_steps for chunked, whole in pairs)
    assert tuple(impl.predicted_extra_steps()) == extra, (
        f"you predicted {impl.predicted_extra_steps()}; it is {extra}. What else was going on in those ticks?"
    )


# ---- the search ----------------------------------------------------------------------------------------------------


def search(impl, slo, arrivals=S, budgets=BUDGETS, thresholds=THRESHOLDS, **more):
    pair, metrics = impl.grid_search(arrivals, budgets, thresholds, slo, **{**POOL, **more})
    return (pair["max_num_batched_tokens"], pair["long_prefill_token_threshold"]), metrics


@pytest.mark.parametrize(("slo", "wanted"), [(10**9, (2048, 0)), (65, (2048, 32)), (64, (64, 0)), (40, (40, 0))])
def test_grid_search_respects_the_slo(impl, slo, wanted):
    pair, metrics = search(impl, slo)
    assert metrics.max_step_tokens <= slo, f"a step of {metrics.max_step_tokens} tokens, and {slo} were allowed"
    assert pair == wanted and numbers(metrics) == numbers(run(impl, S, *wanted))


def test_unsatisfiable_slo_is_loud(impl):
    says = "no setting keeps every step within 16 tokens; the smallest largest step is 40"
    with pytest.raises(ValueError, match=says):
        search(impl, 16)


def test_ties_go_to_who_waits_least_then_to_the_grid(impl):
    assert search(impl, 65, W)[0] == (2048, 32), "all take 24 steps; the others wait 4 to 7 for their first token"
    assert search(impl, 64, thresholds=(32, 0))[0] == (64, 32), "both take 7 steps and wait 4: the first of the grid"
    assert search(impl, 10**9, QUEUE, budgets=(64, 40, 2048))[0] == (64, 0), "all equal: the first of the grid"


def test_fixed_arguments_hold_for_every_pair(impl):
    _, metrics = search(impl, 40, QUEUE, max_num_seqs=1)
    assert numbers(metrics) == (24, 8, [0, 7, 14])


def test_random_workloads_against_the_definition(impl):
    rng = random.Random(18)
    for _ in range(2):
        arrivals = [(rng.randrange(8), rng.randrange(4, 60), rng.randrange(1, 6)) for _ in range(4)]
        grid = [(b, t) for b in (16, 48, 256) for t in (0, 12)]
        rows = {pair: run(impl, arrivals, *pair) for pair in grid}
        limit = sorted(row.max_step_tokens for row in rows.values())[rng.randrange(2, 6)]
        legal = [pair for pair in grid if rows[pair].max_step_tokens <= limit]
        best = min(legal, key=lambda pair: (rows[pair].total_steps, max(rows[pair].ttft_steps), grid.index(pair)))
        assert search(impl, limit, arrivals, (16, 48, 256), (0, 12))[0] == best, f"{arrivals} within {limit}"


# ---- milliseconds --------------------------------------------------------------------------------------------------


def measured(seed, fixed, per_token, interrupted=0.0):
    """Steps of an engine: decodes and some prompts, noisy, some of them interrupted."""
    rng = random.Random(seed)
    tokens = [rng.choice([1, 1, 1, 2, 2, 3, rng.randrange(8, 300)]) for _ in range(160)]
    ms = [(fixed + per_token * each) * rng.uniform(0.95, 1.05) for each in tokens]
    for at in rng.sample(range(160), int(interrupted * 160)):
        ms[at] *= rng.choice([4, 10, 40])
    return list(zip(tokens, ms, strict=True))


@pytest.mark.parametrize(("fixed", "per_token"), [(6.0, 0.15), (0.4, 0.002), (25.0, 0.01), (1.0, 1.0)])
def test_a_clean_line(impl, fixed, per_token):
    steps = [(tokens, fixed + per_token * tokens) for tokens in (1, 1, 2, 40, 300)]
    before = list(steps)
    assert impl.step_cost(steps) == pytest.approx((fixed, per_token), rel=1e-3)
    assert steps == before, "the steps were changed"
    assert impl.step_cost(steps[-2:]) == pytest.approx((fixed, per_token), rel=1e-3)


@pytest.mark.parametrize("interrupted", [0.0, 0.125])
def test_interrupted_steps_do_not_move_the_line(impl, interrupted):
    for seed in range(10):
        fixed, per_token = impl.step_cost(measured(seed, 6.0, 0.15, interrupted))
        for tokens in (1, 250):
            true, found = 6.0 + 0.15 * tokens, fixed + per_token * tokens
            assert found == pytest.approx(true, rel=0.1), (
                f"a step of {tokens} tokens takes {true:.1f} ms, your line says {found:.1f}"
                + (". This looks like *The line through the middle of everything*" if found > true else "")
            )


def test_one_size_is_no_line(impl):
    with pytest.raises(ValueError, match="need steps of at least two sizes, got 1"):
        impl.step_cost([(1, 5.0), (1, 6.0)])
    with pytest.raises(ValueError, match="need steps of at least two sizes, got 0"):
        impl.step_cost([])


def test_the_largest_step_that_is_in_time(impl):
    assert impl.largest_step(50.0, 6.0, 0.25) == 176
    assert impl.largest_step(6.375, 6.0, 0.25) == 1
    assert impl.largest_step(50.0, 30.0, 0.5) == 40, "another engine, whose steps have another fixed part"
    with pytest.raises(ValueError, match=re.escape("no step takes 6.2 ms or less: one token takes 6.2 ms")):
        impl.largest_step(6.2, 6.0, 0.25)
    with pytest.raises(ValueError, match=re.escape("no step takes 5.0 ms or less: one token takes 6.5 ms")):
        impl.largest_step(5.0, 6.0, 0.5)


def test_from_real_steps_to_a_setting(impl):
    """149 steps of real vLLM, on a machine on which others worked as well."""
    captured = json.loads((HERE / "captured" / "steps.json").read_text(encoding="utf-8"))
    steps = [tuple(each) for each in captured["steps"]]
    fixed, per_token = impl.step_cost(steps)
    assert 5.0 < fixed < 8.5 and 0.12 < per_token < 0.24, f"{fixed:.1f} ms and {per_token:.3f} ms a token"
    limit = impl.largest_step(25.0, fixed, per_token)
    assert search(impl, limit)[0] == (2048, 32), f"at most 25 ms a step, so {limit} tokens"
