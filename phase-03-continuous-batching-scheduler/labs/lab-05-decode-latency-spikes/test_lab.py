"""Lab 03-05: the spike, the cap, and who pays for it."""

import statistics

import pytest

MAX_TOKENS = 16


def test_unchunked_prefill_spikes_one_decode_step(impl):
    costs, _ = impl.decode_step_costs(0)
    assert costs == [257, 2, *[1] * 13], "256 prompt tokens and A's one; then B's second token; then A alone"


def test_chunked_prefill_caps_the_spike(impl):
    costs, _ = impl.decode_step_costs(32)
    assert costs == [*[33] * 8, 2, *[1] * 6]
    assert max(costs) <= 32 + 1, "no step of A's holds more than a chunk and A's token"


def test_chunking_does_not_change_the_decode_streams_output(impl):
    answers = {threshold: impl.decode_step_costs(threshold)[1] for threshold in (0, 16, 32, 128)}
    assert all(len(ids) == MAX_TOKENS for ids in answers.values())
    assert len({tuple(ids) for ids in answers.values()}) == 1


@pytest.mark.parametrize("threshold", [0, 16, 32, 64, 128, 256])
def test_decode_stream_is_never_starved(impl, threshold):
    costs, ids = impl.decode_step_costs(threshold)
    assert len(costs) == len(ids) - 1 == MAX_TOKENS - 1, "one token in every single step: running first"


@pytest.mark.parametrize(
    ("threshold", "worst", "elevated"), [(0, 257, 1), (256, 257, 1), (128, 129, 2), (64, 65, 4), (32, 33, 8)]
)
def test_the_dial(impl, threshold, worst, elevated):
    costs, _ = impl.decode_step_costs(threshold)
    assert max(costs) == worst and sum(cost > 2 for cost in costs) == elevated


def test_the_dial_needs_a_long_life_to_be_seen_whole(impl):
    short, _ = impl.decode_step_costs(16)
    longer, _ = impl.decode_step_costs(16, max_tokens=40)
    assert short == [17] * 15, "A is gone before B's sixteen chunks are through"
    assert longer == [*[17] * 16, 2, *[1] * 22]


def test_work_is_moved_not_saved(impl):
    totals = {threshold: sum(impl.decode_step_costs(threshold)[0]) for threshold in (0, 32, 64, 128)}
    assert set(totals.values()) == {272}, "256 + 1 of B, 15 of A, in every arm: the mean cannot tell them apart"


def test_the_length_of_the_intruder_is_the_spike(impl):
    assert impl.decode_step_costs(0, long_prompt_len=1000)[0][:2] == [1001, 2]
    assert impl.decode_step_costs(0, long_prompt_len=10, max_tokens=3)[0] == [11, 2]


def test_a_storm(impl):
    """The threshold holds for each request, the budget for the step: five intruders are five chunks."""
    costs, _ = impl.decode_step_costs(32, num_intruders=5, max_tokens=20)
    assert costs == [*[5 * 32 + 1] * 8, 6, *[1] * 10]
    assert impl.decode_step_costs(0, long_prompt_len=500, num_intruders=5)[0][0] == 2048, "here the budget binds"


def test_no_intruder_no_spike(impl, greedy):
    costs, ids = impl.decode_step_costs(0, num_intruders=0, max_tokens=120)
    assert costs == [1] * 119 and ids == greedy("hi", 120), "greedy, and past EOS, which is its token 104"


def test_who_takes_part(impl, monkeypatch):
    from mini_vllm import LLMEngine

    seen, original = [], LLMEngine.add_request

    def add_request(self, request_id, prompt, params, *args, **kwargs):
        seen.append((prompt, params.max_tokens, params.temperature, params.ignore_eos))
        return original(self, request_id, prompt, params, *args, **kwargs)

    monkeypatch.setattr(LLMEngine, "add_request", add_request)
    impl.decode_step_costs(0, 20, 4, num_intruders=3)
    prompts, limits = [row[0] for row in seen], [row[1:] for row in seen]
    assert prompts[0] == "hi" and limits == [(4, 0.0, True), *[(2, 0.0, True)] * 3]
    letters = {prompt[0] for prompt in prompts[1:]}
    assert len(letters) == 3 and "".join(letters).isalpha(), f"three intruders of three letters, got {prompts[1:]}"
    assert prompts[1:] == [prompt[0] * 20 for prompt in prompts[1:]], f"one letter 20 times each, got {prompts[1:]}"


def test_the_engine_of_the_experiment(impl, monkeypatch):
    """Budget 2,048 and the default pool: a smaller budget would hide the spike, a smaller pool would preempt."""
    from mini_vllm import LLMEngine

    seen, original = [], LLMEngine.__init__

    def made(self, *args, **kwargs):
        original(self, *args, **kwargs)
        config, pool = self.scheduler.config, self.scheduler.kv_cache_manager.block_pool
        seen.append((config.max_num_batched_tokens, config.long_prefill_token_threshold, pool.num_gpu_blocks))

    default = LLMEngine().scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    monkeypatch.setattr(LLMEngine, "__init__", made)
    impl.decode_step_costs(24, 30, 3)
    assert seen == [(2048, 24, default)], "one engine: its budget, its threshold, its pool"


@pytest.mark.parametrize(
    ("costs", "q", "expected"),
    [
        ([3, 1, 2], 50, 2),
        ([1, 2, 3, 4], 50, 2),
        ([1, 2, 3, 4], 51, 3),
        ([5], 99, 5),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 101)), 100, 100),
        (list(range(1, 201)), 99, 198),
        ([9, 1], 1, 1),
    ],
)
def test_percentile(impl, costs, q, expected):
    before = list(costs)
    assert impl.percentile(costs, q) == expected
    assert costs == before, "the list is the caller's"


@pytest.mark.parametrize("n", [50, 100, 200, 700])
def test_every_percentile(impl, n):
    """By counting: the smallest cost that at least q percent of the steps do not exceed, in whole numbers."""
    costs = list(range(1, n + 1))
    for q in range(1, 101):
        want = next(cost for cost in costs if 100 * cost >= q * n)
        got = impl.percentile(costs, q)
        assert got == want, f"p{q} of 1 to {n}: got {got}, expected {want}: {want} of {n} are {100 * want / n:g} %"


@pytest.mark.parametrize(("costs", "q"), [([], 50), ([1], 0), ([1], 100.5), ([1, 2], -1)])
def test_percentile_of_nothing(impl, costs, q):
    with pytest.raises(ValueError, match=rf"^need costs and 0 < q <= 100, got {len(costs)} costs, q={q}$"):
        impl.percentile(costs, q)
    with pytest.raises(ValueError, match=r"^need costs and 0 < q <= 100, got 0 costs"):
        impl.feel([])


def test_how_it_feels(impl):
    spiky = impl.feel([257, 2, *[1] * 13])
    flat = impl.feel([*[33] * 8, 2, *[1] * 6])
    assert (spiky.worst, spiky.p50, spiky.p99) == (257, 1, 257)
    assert (flat.worst, flat.p50, flat.p99) == (33, 33, 33), "the median rises: chunking is not free for A either"
    assert spiky.mean == flat.mean == pytest.approx(272 / 15)
    costs = [4, 1, 2]
    assert impl.feel(costs).mean == pytest.approx(statistics.fmean([1, 2, 4]))
    assert costs == [4, 1, 2], "the costs are the caller's"
    long = impl.feel(list(range(1, 201)))
    assert (long.worst, long.p50, long.p99) == (200, 100, 198)
