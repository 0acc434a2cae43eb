"""Lab 03-06: 544 tokens or 96, and every one of the 448 accounted for."""

import numpy as np
import pytest

from mini_vllm import Request

SYSTEM = "S" * 64
PROMPTS = [SYSTEM + str(i) for i in range(8)]


def ids(prompts):
    return [list(prompt.encode()) for prompt in prompts]


def no_request(self, *args, **kwargs):
    raise AssertionError("a forecast made a request: it does without an engine")


@pytest.fixture
def forecast(impl, monkeypatch):
    """`forecast("predicted_cost", ...)`: your function, called while no engine in this process can take a request."""

    def call(name, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(Request, "__init__", no_request)
            return getattr(impl, name)(*args, **kwargs)

    return call


def test_caching_off_pays_full_price_for_everyone(impl):
    total, answers = impl.run_and_count(PROMPTS, False)
    assert total == 8 * (65 + 3) == 544, "8 prompts of 65, and 3 decoded tokens each: the first comes with the prefill"
    assert [len(a) for a in answers] == [4] * 8


def test_caching_on_computes_the_shared_prefix_once(impl):
    total, _ = impl.run_and_count(PROMPTS, True)
    assert total == 68 + 7 * 4 == 96, "the first pays 65 + 3; a follower computes its own digit and 3 decoded tokens"


def test_savings_equal_followers_times_shared_full_blocks(impl):
    off, on = impl.run_and_count(PROMPTS, False)[0], impl.run_and_count(PROMPTS, True)[0]
    assert off - on == 7 * 16 * 4 == 448


def test_outputs_are_identical_with_and_without_caching(impl):
    """The toy engine runs under the KV oracle: a hit on a wrong block would raise, whatever the outputs say."""
    assert impl.run_and_count(PROMPTS, True)[1] == impl.run_and_count(PROMPTS, False)[1]
    answers = impl.run_and_count(PROMPTS, True)[1]
    assert len({tuple(a) for a in answers}) > 1, "each prompt has its own answer"


def test_unshared_prompts_save_nothing(impl):
    distinct = [chr(97 + i) * 65 for i in range(8)]
    assert impl.run_and_count(distinct, True)[0] == impl.run_and_count(distinct, False)[0] == 544
    nearly = [f"prompt number {i} " + chr(97 + i) * 50 for i in range(8)]
    off, on = impl.run_and_count(nearly, False)[0], impl.run_and_count(nearly, True)[0]
    assert 0 < (off - on) / off < 0.25, "a few words in common are a few blocks"


def test_only_full_blocks_count(impl):
    longer = ["S" * 66 + str(i) for i in range(8)]
    off, on = impl.run_and_count(longer, False)[0], impl.run_and_count(longer, True)[0]
    assert (off, on, off - on) == (560, 112, 448), "two more shared tokens do not fill a block: not one token more"


def test_one_token_is_always_left(impl):
    same = [SYSTEM] * 8
    off, on = impl.run_and_count(same, False)[0], impl.run_and_count(same, True)[0]
    assert (off, on, off - on) == (536, 116, 7 * 15 * 4), "of 16 equal blocks a follower may use 15"


def test_arguments_reach_the_engine(impl, greedy):
    assert impl.run_and_count(PROMPTS[:2], True, block_size=16, max_tokens=1)[0] == 65 + 1
    assert impl.run_and_count(PROMPTS[:2], True, 32, 2, 64)[0] == 66 + 2
    assert impl.run_and_count([], True) == (0, []), "nobody came"
    with pytest.raises(ValueError, match="KV cache holds 28"):
        impl.run_and_count(PROMPTS[:1], True, num_blocks=8)
    assert impl.run_and_count(["we"], False, max_tokens=6) == (2 + 5, [greedy("we", 6)]), "greedy, past EOS"
    assert impl.run_and_count(["x" * 1017], False)[0] == 1020, "256 blocks: 255 of four tokens are usable"
    with pytest.raises(ValueError, match="KV cache holds 1020"):
        impl.run_and_count(["x" * 1018], False)


def test_other_engines_are_left_alone(impl):
    from mini_vllm import Scheduler

    before = Scheduler.schedule
    impl.run_and_count(PROMPTS[:1], True)
    assert Scheduler.schedule is before, "wrap the method of one object, not of its class"


@pytest.mark.parametrize(("num_blocks", "total"), [(18, 544), (19, 520), (20, 496), (33, 184), (34, 160), (64, 160)])
def test_the_cliff(impl, num_blocks, total):
    """Two systems take turns, one request at a time: each follower needs what the other one has just pushed out."""
    turns = [("S" if i % 2 else "T") * 64 + str(i) for i in range(8)]
    assert impl.run_and_count(turns, True, num_blocks=num_blocks, max_num_seqs=1)[0] == total


# ---- the forecast --------------------------------------------------------------------------------------------------


def test_forecast_of_the_workload(forecast):
    assert forecast("predicted_cost", ids(PROMPTS), 4, 4) == 96
    assert forecast("predicted_cost", ids(PROMPTS), 4, 4, enable_caching=False) == 544
    assert forecast("predicted_cost", ids([SYSTEM] * 8), 4, 4) == 116
    assert forecast("predicted_cost", [[1, 2, 3]], 4, 1) == 3 and forecast("predicted_cost", [], 4, 4) == 0
    given = ids(PROMPTS[:3])
    forecast("predicted_cost", given, 4, 4)
    assert given == ids(PROMPTS[:3]), "the prompts are the caller's, and were changed"
    zeros = [[0] * 9, [0] * 9, [0] * 6]
    assert forecast("predicted_cost", zeros, 4, 1) == 9 + 1 + 2, (
        "token 0 is a token; any earlier prompt may be the donor"
    )
    assert forecast("predicted_cost", zeros, 3, 2) == 10 + 4 + 4, (
        "blocks of three: of 9 known tokens 6 are hit, of 6 three"
    )


def test_equal_blocks_at_another_place_are_no_hit(forecast):
    a, b = [1] * 4 + [2] * 4, [2] * 4 + [1] * 4
    assert forecast("predicted_cost", [[*a, 9], [*b, 9]], 4, 1) == 18, "a block is known by everything before it"
    assert forecast("predicted_cost", [[*a, 9], [3] * 4 + [2] * 4 + [9]], 4, 1) == 18


@pytest.mark.parametrize("seed", range(10))
def test_forecast_equals_the_engine(impl, forecast, seed):
    rng = np.random.default_rng(seed)
    pieces = ["".join(rng.choice(list("abcdef"), rng.integers(2, 20))) for _ in range(3)]
    prompts = ["".join(rng.choice(pieces, rng.integers(1, 5))) for _ in range(12)]
    block_size, max_tokens = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    for caching in (True, False):
        cost = forecast("predicted_cost", ids(prompts), block_size, max_tokens, caching)
        total, _ = impl.run_and_count(prompts, caching, block_size, max_tokens, 2000)
        assert cost == total


# ---- a conversation ------------------------------------------------------------------------------------------------


def test_a_turn_costs_its_delta(forecast):
    assert forecast("chat_costs", 64, 15, 8, 5) == [86, 25, 24, 23, 26], (
        "the prompts are 79, 102, 125, 148 and 171 tokens"
    )
    assert forecast("chat_costs", 64, 15, 8, 0) == [] and forecast("chat_costs", 0, 3, 1, 1) == [3]


@pytest.mark.parametrize(
    ("system_len", "question_len", "answer_len", "block_size"),
    [(64, 15, 8, 4), (10, 1, 1, 4), (7, 9, 5, 3), (30, 6, 11, 16), (12, 4, 4, 1)],
)
def test_conversation_equals_the_engine(forecast, system_len, question_len, answer_len, block_size):
    """The same turns in the engine, with the answer's token ids fed back."""
    from mini_vllm import LLMEngine, SamplingParams

    engine = LLMEngine(block_size=block_size, num_blocks=1000)
    rng = np.random.default_rng(1)
    history, costs = rng.integers(0, 256, system_len).tolist(), []
    for turn in range(5):
        history = history + rng.integers(0, 256, question_len).tolist()
        params = SamplingParams(max_tokens=answer_len, temperature=0.0, ignore_eos=True)
        before = engine.stats.num_scheduled_tokens
        engine.add_request(f"turn{turn}", {"prompt_token_ids": history}, params)
        request = engine.scheduler.requests[f"turn{turn}"]
        while engine.has_unfinished_requests():
            engine.step()
        history = history + request.output_token_ids
        costs.append(engine.stats.num_scheduled_tokens - before)
    assert forecast("chat_costs", system_len, question_len, answer_len, 5, block_size) == costs
