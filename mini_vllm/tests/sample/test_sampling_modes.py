"""`logprobs_mode` and `thinking_token_budget`, as the real vLLM has them (golden/record_sampling_modes.py); and what a
request asks of the sampler beside drafts, where the real one drops it."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.sample.thinking_budget_state import Thought
from mini_vllm.tests.golden import sampling_mode_cases as cases
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN, POCKET

TIE = 1e-4
QUICK = {("raw_logits", "ngram"), ("processed_logprobs", "none")}


@functools.lru_cache(maxsize=1)
def recorded():
    return read_packed(GOLDEN / "sampling-modes.json.xz")


def drafts(name):
    return {"none": None, "ngram": cases.NGRAM, "draft_model": cases.DRAFT_MODEL}[name]


def engine(**more):
    return LLM(POCKET, **{**cases.ENGINE, **more})


def slow_unless_quick(first, second):
    return [
        pytest.param(a, b, marks=[] if (a, b) in QUICK else [pytest.mark.slow], id=f"{a}-{b}")
        for a in first
        for b in second
    ]


# ---- logprobs_mode -------------------------------------------------------------------------------------------------


def same_entries(mine, theirs):
    """Steps compared, until the two likeliest tokens of a greedy step are too near each other. Entries are (id, value,
    rank); near values may stand in another order."""
    for step, (entry, golden) in enumerate(zip(mine, theirs, strict=True)):
        wanted = {token: (-math.inf if value is None else value, rank) for token, value, rank in golden}
        finite = {token: value for token, (value, _) in wanted.items() if value > -math.inf}
        got = {token: each.logprob for token, each in entry.items() if each.logprob > -math.inf}
        values = sorted(finite.values(), reverse=True)
        assert np.allclose(sorted(got.values(), reverse=True), values, atol=TIE * 2, rtol=1e-5), (step, got, finite)
        if len(values) > 1 and values[0] - values[1] < TIE:
            return step
        for token, value in finite.items():
            assert token in got or abs(value - values[-1]) < TIE, (step, token, got, finite)
        chosen = golden[0][0]
        assert entry[chosen].rank == wanted[chosen][1], (step, chosen, entry[chosen].rank, wanted[chosen])
    return len(theirs)


def ask(llm, rows, prompts=cases.PROMPTS, **more):
    asked = [(prompt, row) for prompt in prompts for row in rows]
    params = [SamplingParams(logprobs=cases.LOGPROBS, ignore_eos=True, **{**row, **more}) for _, row in asked]
    prompts = [prompt for prompt, _ in asked]
    return [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize(("mode", "method"), slow_unless_quick(cases.MODES, ["none", "ngram"]))
def test_what_is_reported_is_upstreams(mode, method):
    golden = recorded()["modes"][mode][method]
    llm = engine(logprobs_mode=mode, speculative_config=drafts(method))
    batches = {"greedy": cases.GREEDY, "mixed": [*cases.GREEDY, *cases.ONE_LEFT]}
    steps = 0
    for name in batches.keys() & golden.keys():
        outputs = ask(llm, batches[name], max_tokens=cases.MAX_TOKENS)
        for output, theirs in zip(outputs, golden[name], strict=True):
            compared = same_entries(output.logprobs, theirs["entries"])
            assert list(output.token_ids)[:compared] == theirs["token_ids"][:compared]
            steps += compared
    assert steps >= 0.98 * sum(cases.MAX_TOKENS * len(golden[name]) for name in batches.keys() & golden.keys())


@pytest.mark.parametrize("mode", cases.MODES)
def test_a_draw_from_several_reports_what_was_offered(mode):
    """The token drawn is another one than in the real engine, the likeliest and their values are not."""
    outputs = ask(engine(logprobs_mode=mode), cases.FIRST_STEP, max_tokens=1)
    for output, theirs in zip(outputs, recorded()["modes"][mode]["none"]["first step"], strict=True):
        (step,), (golden,) = output.logprobs, theirs["entries"]
        top = sorted((each.logprob for each in step.values()), reverse=True)[:3]
        values = sorted((-math.inf if value is None else value for _, value, _ in golden), reverse=True)[:3]
        assert np.allclose(top, values, atol=2 * TIE, rtol=1e-5), (top, values)


def test_modes_differ_where_they_should():
    params = SamplingParams(temperature=0.5, top_k=2, seed=1, max_tokens=1, logprobs=3)
    told = {}
    for mode in cases.MODES:
        (output,) = engine(logprobs_mode=mode).generate(["The scheduler"], params, use_tqdm=False)
        told[mode] = sorted((each.logprob for each in output.outputs[0].logprobs[0].values()), reverse=True)
    raw, processed = np.array(told["raw_logits"][:2]), np.array(told["processed_logits"][:2])
    assert np.allclose(processed, raw / 0.5, rtol=1e-6) and told["processed_logits"][2] == -math.inf
    assert np.isclose(np.exp(told["processed_logprobs"][:2]).sum(), 1.0)
    assert np.allclose(np.diff(told["raw_logprobs"]), np.diff(told["raw_logits"]), atol=1e-5)


def test_prompt_logprobs_are_raw_in_every_mode():
    """As upstream computes them, though its configuration says otherwise."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    told = []
    for mode in ("raw_logprobs", "processed_logits"):
        (output,) = engine(logprobs_mode=mode).generate(["The scheduler plans"], params, use_tqdm=False)
        told.append([{token: e.logprob for token, e in step.items()} for step in output.prompt_logprobs[1:]])
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logprobs_mode": "raw"}, "logprobs_mode must be one of"),
        ({"use_fp64_gumbel": 1}, "use_fp64_gumbel must be True or False, got 1"),
        (
            {"reasoning_config": {"reasoning_start_str": "<think>"}},
            "reasoning_end_str must be a text that is not empty",
        ),
        ({"reasoning_config": {"reasoning_parser": "qwen3"}}, "reasoning_config: reasoning_parser is not here"),
        ({"reasoning_config": {"start": "a"}}, "reasoning_config: unknown key 'start'; allowed: reasoning_parser"),
        ({"reasoning_config": "qwen3"}, "reasoning_config must be a dict or a ReasoningConfig, got 'qwen3'"),
    ],
)
def test_settings_are_checked_at_the_door(given, message):
    with pytest.raises(ValueError, match=message):
        LLM(**given)


# ---- thinking_token_budget -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("marks", "method"), slow_unless_quick(cases.THINKING, ["none", "ngram", "draft_model"]))
def test_thinking_ends_as_upstream_ends_it(marks, method):
    """With drafts too as upstream does without: what it does with drafts is the next test's."""
    check_thinking(marks, method)


def test_some_thinking_ends_as_upstream_ends_it():
    """The same on fewer answers: two prompts, that open the thinking and that do not, under three budgets."""
    check_thinking("several tokens", "none", every=2, upto=12)


def check_thinking(marks, method, every=1, upto=None):
    golden = recorded()["thinking"][marks]["none"]
    llm = engine(reasoning_config=cases.THINKING[marks], speculative_config=drafts(method))
    asked = [(prompt, budget) for prompt in cases.THINKING_PROMPTS for budget in cases.BUDGETS]
    halves = [golden[: len(asked)], golden[len(asked) :]]
    asked = asked[:upto:every]
    for temperature, half in zip((0.0,) if drafts(method) else (0.0, 0.6), halves, strict=False):
        params = [
            SamplingParams(temperature=temperature, top_k=1, seed=1, max_tokens=cases.THINKING_TOKENS, ignore_eos=True,
                           thinking_token_budget=budget)
            for _, budget in asked
        ]  # fmt: skip
        outputs = llm.generate([prompt for prompt, _ in asked], params, use_tqdm=False)
        for (prompt, budget), output, theirs in zip(asked, outputs, half[:upto:every], strict=True):
            near = next((i for i, gap in enumerate(theirs["gaps"]) if gap < TIE), cases.THINKING_TOKENS)
            mine = list(output.outputs[0].token_ids)
            assert mine[:near] == theirs["token_ids"][:near], (prompt, budget, temperature)


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_upstreams_budgets_reach_into_other_requests_beside_drafts(method):
    """The bug that is not repeated, as recorded: a request without a budget, and without any mark in its prompt, says
    the mark of the end that a neighbour's budget forces."""
    first = (cases.THINKING_PROMPTS[0], None)
    at = [(prompt, budget) for prompt in cases.THINKING_PROMPTS for budget in cases.BUDGETS].index(first)
    for marks in ("one token", "several tokens"):
        golden = recorded()["thinking"][marks]
        plain, drafted = golden["none"][at]["token_ids"], golden[method][at]["token_ids"]
        forced = (
            LLM(POCKET).get_tokenizer().encode(cases.THINKING[marks]["reasoning_end_str"], add_special_tokens=False)
        )
        assert drafted[0] == forced[0] != plain[0]


def thought(budget, prompt=(), start=(1, 2), end=(8, 9)):
    params = SamplingParams(thinking_token_budget=budget)
    params.think_start_token_ids, params.think_end_token_ids = list(start), list(end)
    return Thought(params, prompt)


@pytest.mark.parametrize(
    ("budget", "prompt", "output", "forced"),
    [
        (2, [], [5, 1, 2, 7], None), (2, [], [5, 1, 2, 7, 7], 8), (2, [], [5, 1, 2, 7, 7, 8], 9),
        (2, [], [5, 1, 2, 7, 7, 8, 9], None), (2, [], [5, 1, 2, 7, 7, 8, 9, 1, 2, 7, 7, 7], None),
        (0, [], [1, 2], 8), (0, [], [1], None), (0, [1, 2], [], 8), (0, [1, 2], [8], 9), (3, [1, 2, 7], [7, 7], 8),
        (1, [1, 2, 7, 7, 7], [], 8), (1, [1, 2, 7, 7, 7], [8], 9), (1, [1, 2, 7, 7, 7], [8, 9], None),
        (0, [1, 2, 8, 9], [7], None), (0, [1, 2, 8, 9, 1, 2], [], 8), (5, [], [1, 2, 7, 8, 9, 7, 7, 7, 7], None),
        (2, [], [8, 9, 1, 2, 7, 7], 8), (2, [], [8, 9, 1, 2, 7, 7, 8, 9, 7, 7], None), (2, [1], [2, 7, 7], None),
        (9, [], [], None), (2, [], [1, 1, 2, 7, 7], 8), (3, [], [1, 2, 7, 7, 8], 8),
    ],
)  # fmt: skip
def test_the_forced_token_is_a_function_of_the_text(budget, prompt, output, forced):
    """Asked at the end alone, and after each token, as an engine that is never interrupted asks."""
    assert thought(budget, prompt).forced(list(output)) == forced
    watched, told = thought(budget, prompt), []
    for count in range(len(output) + 1):
        told.append(watched.forced(list(output[:count])))
    assert told[-1] == forced and told == [thought(budget, prompt).forced(list(output[:n])) for n in range(len(told))]


def test_a_budget_needs_marks_and_may_be_unbounded():
    marks = cases.THINKING["several tokens"]
    with pytest.raises(ValueError, match="thinking_token_budget is set but reasoning_config is not configured"):
        LLM().generate("a", SamplingParams(thinking_token_budget=5))
    llm = engine(reasoning_config=marks)
    texts = [
        llm.generate(
            cases.THINKING_PROMPTS[:1],
            SamplingParams(temperature=0.0, max_tokens=40, thinking_token_budget=budget),
            use_tqdm=False,
        )[0].outputs[0].text
        for budget in (None, -1, 2)
    ]  # fmt: skip
    assert texts[0] == texts[1] != texts[2] and marks["reasoning_end_str"] in texts[2]


@pytest.mark.slow
def test_a_preempted_thinker_ends_where_it_would_have():
    """Computed anew in a pool that is too small, and counted anew."""
    marks = cases.THINKING["several tokens"]
    params = SamplingParams(temperature=0.0, max_tokens=30, thinking_token_budget=4, ignore_eos=True)
    told = []
    for pool in ({}, {"num_blocks": 14, "block_size": 8}):
        llm = engine(reasoning_config=marks, dtype="float64", **pool) if not pool else LLM(
            POCKET, dtype="float64", reasoning_config=marks, max_num_seqs=4, enable_prefix_caching=False, **pool
        )  # fmt: skip
        outputs = llm.generate([*cases.THINKING_PROMPTS, "Once"], params, use_tqdm=False)
        told.append(([list(each.outputs[0].token_ids) for each in outputs], llm.llm_engine.stats.num_preemptions))
    assert told[0][0] == told[1][0] and told[0][1] == 0 < told[1][1]


ELSEWHERE = {
    "planned ahead": {"async_scheduling": True},
    "two ranks": {"tensor_parallel_size": 2},
    "a process of its own": {"enable_multiprocessing": True},
    "chunks": {"max_num_batched_tokens": 16, "max_num_seqs": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ELSEWHERE)
def test_modes_and_budgets_work_wherever_the_sampler_runs(way):
    if way == "a process of its own":
        pytest.importorskip("zmq", reason="pyzmq is in the extra `serve`")
        pytest.importorskip("msgspec", reason="msgspec is in the extra `serve`")
    settings = {
        "dtype": "float64", "logprobs_mode": "processed_logits", "reasoning_config": cases.THINKING["several tokens"],
    }  # fmt: skip
    params = [
        SamplingParams(temperature=t, top_k=20, seed=3, max_tokens=20, logprobs=2, thinking_token_budget=budget)
        for t, budget in ((0.0, 2), (0.9, 5), (0.7, None))
    ]
    told = []
    for more in ({}, ELSEWHERE[way]):
        llm = LLM(POCKET, **settings, **more)
        outputs = llm.generate(cases.THINKING_PROMPTS[:3], params, use_tqdm=False)
        told.append([(list(o.outputs[0].token_ids), o.outputs[0].logprobs) for o in outputs])
        llm.llm_engine.shutdown()
    for (mine, entries), (theirs, expected) in zip(told[1], told[0], strict=True):
        assert mine == theirs
        for a, b in zip(entries, expected, strict=True):
            assert a.keys() == b.keys() and all(np.isclose(a[t].logprob, b[t].logprob, atol=1e-6) for t in a)
