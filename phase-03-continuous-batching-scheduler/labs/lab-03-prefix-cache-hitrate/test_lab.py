"""Lab 03-03: your arithmetic on true captures of vLLM 0.22.1, and, where it is installed, on a run of your own."""

import json
import lzma
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
POCKET = HERE.parents[2] / "models" / "pocket"
BLOCK = 16


def run(arm):
    return json.loads(lzma.decompress((CAPTURED / f"cpu-{arm}.json.xz").read_bytes()))


def prompts(result):
    return [request["prompt_token_ids"] for request in result["requests"]]


# ---- arithmetic ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt_len", "shared", "block_size", "hits"),
    [
        (445, 430, 16, 416),
        (385, 377, 16, 368),
        (130, 130, 16, 128),
        (129, 128, 16, 128),
        (128, 128, 16, 112),
        (16, 16, 16, 0),
        (17, 16, 16, 16),
        (1025, 1025, 16, 1024),
        (100, 15, 16, 0),
        (5, 5, 1, 4),
    ],
)
def test_expected_hits(impl, prompt_len, shared, block_size, hits):
    assert impl.expected_hits(prompt_len, shared, block_size) == hits


def test_common_prefix(impl):
    assert impl.common_prefix([1, 2, 3, 4], [1, 2, 9, 4]) == 2, "the 4 that agree again later do not count"
    assert impl.common_prefix([1, 2], [1, 2, 3]) == 2 and impl.common_prefix([], [1]) == 0
    assert impl.common_prefix([5], [6]) == 0 and impl.common_prefix([1, 2, 3], [1, 2]) == 2
    assert impl.common_prefix([0, 0], [0, 0]) == 2, "token 0 is a token"


def test_rates_of_the_worked_example(impl):
    """One pioneer, fifteen followers, 445 tokens each, 430 of them shared."""
    requests = [{"prompt_token_ids": [0] * 445, "num_cached_tokens": 416 * (i > 0)} for i in range(16)]
    savings = impl.read_run({"requests": requests})
    assert (savings.queried, savings.hit, savings.computed_prompt) == (7120, 6240, 880)
    assert savings.token_hit_rate == pytest.approx(6240 / 7120, rel=1e-12), "6,240 of 7,120 tokens, 87.6 %"
    assert savings.request_hit_rate == 15 / 16
    one = {"requests": [{"prompt_token_ids": [1, 2, 3], "num_cached_tokens": 1}]}
    assert impl.read_run(one).request_hit_rate == 1.0, "one token is a hit too (blocks of one)"


def test_long_prompts_weigh_more(impl):
    requests = [
        {"prompt_token_ids": [0] * 100, "num_cached_tokens": 0},
        {"prompt_token_ids": [0] * 10, "num_cached_tokens": 8},
    ]
    assert impl.read_run({"requests": requests}).token_hit_rate == 8 / 110, "of all tokens, not the mean of 0 and 0.8"


def test_two_requests_weigh_alike(impl):
    rows = [{"prompt_token_ids": [0] * n, "num_cached_tokens": hit} for n, hit in ((100, 16), (10, 8), (32, 0), (5, 0))]
    result = {"requests": rows}
    before = json.loads(json.dumps(result))
    savings = impl.read_run(result)
    assert (savings.queried, savings.hit, savings.computed_prompt) == (147, 24, 123)
    assert savings.token_hit_rate == pytest.approx(24 / 147, rel=1e-12) and savings.request_hit_rate == 0.5
    assert result == before, "the result is the caller's, and was changed"


def test_kv_saved(impl):
    assert impl.kv_saved_bytes(16, 416, 12_288) == 76_677_120, "Qwen2.5-0.5B: 76.7 MB"
    assert impl.kv_saved_bytes(64, 416, 327_680) == 8_587_837_440, "Llama-3-70B, 64 users: 8.6 GB"
    assert impl.kv_saved_bytes(1, 416, 12_288) == impl.kv_saved_bytes(0, 416, 1) == 0


def test_predict_by_hand(impl):
    a, b, c = list(range(40)), [*range(20), *range(90, 99)], [7] * 33
    given = [a, b, c, c, a[:33], a[:32]]
    assert impl.predict(given, 8) == [0, 16, 0, 32, 32, 24]
    assert given == [a, b, c, c, a[:33], a[:32]] and len(a) == 40, "the prompts are the caller's, and were changed"
    assert impl.predict([[7] * 8 + [1], [7] * 12, [7] * 9], 4) == [0, 8, 8], "any earlier prompt, also a longer one"
    many = [[i] * 20 for i in range(9)]
    assert impl.predict([*many, [*many[4][:12], 99]], 4)[-1] == 12, "any earlier prompt, wherever it stood"
    tail = [*b[:20], *range(70, 90)]
    assert impl.predict([a, tail, [*tail[:36], 5]], 8) == [0, 16, 32], "the one that shares most, not the first"
    assert impl.predict([], 8) == [] and impl.predict([[1, 2, 3], [1, 2, 3]], 1) == [0, 2]


# ---- the captures --------------------------------------------------------------------------------------------------


def test_prediction_equals_the_real_engine(impl):
    result = run("on")
    cached = [request["num_cached_tokens"] for request in result["requests"]]
    assert impl.predict(prompts(result), BLOCK) == cached == [0] + [368] * 15


def test_followers_hit_within_the_same_step(impl):
    first = list(run("on")["steps"][0]["tokens"].values())
    lengths = [len(p) for p in prompts(run("on"))]
    assert first == [n - hit for n, hit in zip(lengths, impl.predict(prompts(run("on")), BLOCK), strict=True)], (
        "all sixteen are admitted in step 1; fifteen find blocks that the first was given a moment before"
    )
    assert sum(first) == impl.read_run(run("on")).computed_prompt == 646


def test_hit_rates_of_the_capture(impl):
    on, off = impl.read_run(run("on")), impl.read_run(run("off"))
    assert (on.queried, on.hit, on.computed_prompt) == (6166, 5520, 646)
    assert on.token_hit_rate == pytest.approx(0.8952, abs=1e-4) and on.request_hit_rate == 0.9375
    assert (off.hit, off.token_hit_rate, off.request_hit_rate) == (0, 0.0, 0.0)
    assert off.computed_prompt == 6166


def test_the_engines_counters_say_the_same(impl):
    counters, savings = run("on")["counters"], impl.read_run(run("on"))
    assert counters["vllm:prefix_cache_queries"] == savings.queried
    assert counters["vllm:prefix_cache_hits"] == savings.hit


def test_a_meter_that_reads_too_high(impl):
    """The pioneer's first steps give no output, and the offline engine drops the statistics of such steps."""
    counters, savings = run("chunked")["counters"], impl.read_run(run("chunked"))
    assert savings.hit == counters["vllm:prefix_cache_hits"] == 5520
    assert savings.queried - counters["vllm:prefix_cache_queries"] == len(prompts(run("chunked"))[0]) == 385
    shown = counters["vllm:prefix_cache_hits"] / counters["vllm:prefix_cache_queries"]
    assert round(shown, 3) == 0.955 and round(savings.token_hit_rate, 3) == 0.895


def test_memory_saved(impl):
    per_token = 2 * 8 * 2 * 64 * 4  # K and V, 8 layers, 2 KV heads, 64 numbers of 4 bytes
    peak = {arm: max(step["blocks_in_use"] for step in run(arm)["steps"]) for arm in ("on", "off")}
    assert peak == {"on": 61, "off": 406}
    saved = (peak["off"] - peak["on"]) * BLOCK * per_token
    assert saved == impl.kv_saved_bytes(16, 368, per_token) == 45_219_840


def test_caching_changes_no_token():
    answers = [[request["token_ids"] for request in run(arm)["requests"]] for arm in ("on", "off", "chunked")]
    assert answers[0] == answers[1] == answers[2]


def test_mini_vllm_hits_what_vllm_hits(impl):
    """The same prompts through the small engine: the same cached tokens, the same tokens per step."""
    from mini_vllm import LLMEngine, SamplingParams, ToyModel

    for arm, budget in (("on", 8192), ("chunked", 64)):
        result = run(arm)
        toy = ToyModel(vocab_size=4096)
        engine = LLMEngine(toy, block_size=BLOCK, num_blocks=1024, max_num_seqs=16, max_num_batched_tokens=budget)
        steps, original = [], engine.scheduler.schedule

        def schedule(original=original, steps=steps):
            output = original()
            steps.append(list(output.num_scheduled_tokens.values()))
            return output

        engine.scheduler.schedule = schedule
        for i, prompt in enumerate(prompts(result)):
            params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
            engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
        requests = list(engine.scheduler.requests.values())
        while engine.has_unfinished_requests():
            engine.step()
        assert [r.num_cached_tokens for r in requests] == impl.predict(prompts(result), BLOCK)
        assert steps == [list(step["tokens"].values()) for step in result["steps"]]


def test_the_h200_says_the_same(impl):
    """Eight equal prompts of 1,025 tokens, and a pair that shares 512: true captures from a GPU."""
    rows = [json.loads(line) for line in (CAPTURED / "h200-prefix.jsonl").read_text(encoding="utf-8").splitlines()]
    cached = {row["case"]: row["num_cached_tokens"] for row in rows}
    same = list(range(1025))
    assert cached["8 identical, one generate call"] == impl.predict([same] * 8, BLOCK)
    other = same[:512] + [9] * 513
    assert cached["new prompt, and one sharing its first half"] == impl.predict([same, other], BLOCK) == [0, 512]


# ---- a run of your own ---------------------------------------------------------------------------------------------


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About half a minute: starts vLLM on models/pocket and checks your prediction on what it did."""
    _, result = real_run(str(POCKET))
    cached = [request["num_cached_tokens"] for request in result["requests"]]
    assert impl.predict(prompts(result), BLOCK) == cached
    assert impl.read_run(result).request_hit_rate == 15 / 16
