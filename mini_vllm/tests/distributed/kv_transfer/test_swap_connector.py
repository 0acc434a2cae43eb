"""A pool that is too small, and a host's memory beside it: the same tokens, and nothing is computed twice."""

import re

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed.kv_transfer.kv_connector.swap_connector import COUNTS, CheaperPolicy
from mini_vllm.tests.distributed.kv_transfer.offloading import conversations, save

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
TIGHT = 26  # blocks of 4 tokens, for three requests that need 15 each in the end
PROMPTS = conversations(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("swap"))


def make(folder, extra=None, num_blocks=TIGHT, **settings):
    transfer = None
    if extra is not None:
        transfer = {"kv_connector": "SwapConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    settings = {"dtype": "float64", "block_size": 4, "enable_prefix_caching": False, **settings}
    return LLM(str(folder), num_blocks=num_blocks, kv_transfer_config=transfer, **settings)


def connector(llm):
    return llm.llm_engine.scheduler.connector.connector


def serve(llm, params=GREEDY):
    """Tokens of each prompt, tokens that were computed, preemptions; afterwards nobody holds a place."""
    outputs = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    scheduler = llm.llm_engine.scheduler
    if scheduler.connector is not None:
        half = connector(llm)
        assert sorted(half._free_places) == list(range(half._num_places)) and not half._running and not half._swapped
    return outputs, llm.llm_engine.stats.num_scheduled_tokens, scheduler.num_preemptions


@pytest.fixture(scope="module")
def roomy(folder):
    outputs, computed, preempted = serve(make(folder, num_blocks=200))
    assert (computed, preempted) == (3 * (33 + 24 - 1), 0)
    return outputs


def test_swapped_requests_compute_nothing_twice(folder, roomy):
    """The tokens of a roomy pool, and as many computed; the scheduler alone computes the victims' again."""
    outputs, computed, preempted = serve(make(folder))
    assert outputs == roomy and computed > 168 and preempted > 0
    llm = make(folder, {"swap_blocks": 32})
    assert serve(llm) == (roomy, 168, preempted)
    counts = connector(llm).counts
    assert counts["swapped_out_tokens"] == counts["swapped_in_tokens"] == computed - 168


def test_without_room_a_victim_is_computed_again(folder, roomy):
    llm = make(folder, {"swap_blocks": 2})
    outputs, computed, preempted = serve(llm)
    assert outputs == roomy and computed > 168
    assert connector(llm).counts == {"no_room_requests": preempted}


def test_what_the_pool_still_has_is_not_copied(folder, roomy):
    llm = make(folder, {"swap_blocks": 32}, enable_prefix_caching=True)
    outputs, computed, preempted = serve(llm)
    assert outputs == roomy and preempted > 0
    counts = connector(llm).counts
    assert counts["swapped_out_tokens"] > counts["swapped_in_tokens"] > 0
    assert computed == 168 - 2 * 8, "two of the three prompts begin as the first does, and nothing is computed twice"


def test_a_policy_may_decline(folder, roomy):
    llm = make(folder, {"swap_blocks": 32, "seconds_per_token": 1e-9, "bytes_per_second": 1.0})
    outputs, computed, preempted = serve(llm)
    assert outputs == roomy and computed > 168
    assert connector(llm).counts == {"declined_requests": preempted}


def counted(llm):
    found = [each for each in llm.get_metrics() if each.name.startswith("vllm:preempted_")]
    return {each.name.removeprefix("vllm:preempted_"): each.value for each in found}


def test_what_became_of_victims_is_counted(folder):
    """Among the engine's metrics, from its start."""
    llm = make(folder, {"swap_blocks": 32}, disable_log_stats=False)
    assert counted(llm) == dict.fromkeys(COUNTS, 0)
    assert serve(llm)[2] > 0
    found = counted(llm)
    assert found["swapped_out_tokens"] == found["swapped_in_tokens"] > 0 == found["no_room_requests"]


def test_the_cheaper_way():
    """100 tokens of 10,000 bytes: two copies of a million bytes take 2 ms at 1e9 bytes a second."""
    assert CheaperPolicy(21e-6, 1e9).swaps(100, 1_000_000)
    assert not CheaperPolicy(20e-6, 1e9).swaps(100, 1_000_000), "as cheap is not cheaper"
    assert not CheaperPolicy(21e-6, 0.9e9).swaps(100, 1_000_000)


def test_who_ends_while_it_is_away_leaves_nothing(folder):
    """An abort, and a reset of the cache, while a victim waits."""
    for end in ("abort", "reset"):
        llm = make(folder, {"swap_blocks": 32})
        engine = llm.llm_engine
        for i, prompt in enumerate(PROMPTS):
            engine.add_request(str(i), prompt, GREEDY)
        while not connector(llm)._swapped:
            engine.step()
        away = next(iter(connector(llm)._swapped))
        if end == "abort":
            engine.abort_request([away])
        else:
            assert connector(llm).reset_cache()
        assert not connector(llm)._swapped and len(connector(llm)._free_places) == 32
        while engine.has_unfinished_requests():
            engine.step()
        assert engine.stats.num_scheduled_tokens > 168 - 57 * (end == "abort")


def test_requests_that_a_reset_has_preempted_have_new_blocks(folder, roomy):
    """No plan names them as victims; their old tables are forgotten all the same."""
    llm = make(folder, {"swap_blocks": 32})
    engine, found = llm.llm_engine, {}
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, GREEDY)
    for step in range(200):
        if not engine.has_unfinished_requests():
            break
        if step == 2:
            assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        found |= {each.request_id: each.outputs[0].token_ids for each in engine.step()}
    assert connector(llm).counts["swapped_in_tokens"] > 0
    assert [found[str(i)] for i in range(3)] == roomy


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({}, "kv_connector_extra_config['swap_blocks'] must be a whole number of at least 1, got None."),
        ({"swap_blocks": 0}, "kv_connector_extra_config['swap_blocks'] must be a whole number of at least 1, got 0."),
        ({"swap_blocks": True}, "must be a whole number of at least 1, got True."),
        ({"swap_block": 4}, "did you mean 'swap_blocks'?, got 'swap_block'."),
        (
            {"swap_blocks": 4, "seconds_per_token": 1e-3},
            "kv_connector_extra_config['bytes_per_second'] must be a positive number, as its neighbour, got None.",
        ),
        (
            {"swap_blocks": 4, "seconds_per_token": float("nan"), "bytes_per_second": 1.0},
            "kv_connector_extra_config['seconds_per_token'] must be a positive number, as its neighbour, got nan.",
        ),
    ],
)
def test_settings_are_checked(folder, extra, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        make(folder, extra)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"async_scheduling": True},
        {"async_scheduling": True, "enable_prefix_caching": True},
        {"tensor_parallel_size": 2},
        {"max_num_batched_tokens": 16},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}},
        {"scheduling_policy": "priority"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_the_same_tokens_with_everything_else(folder, roomy, settings):
    llm = make(folder, {"swap_blocks": 64}, **settings)
    outputs, _, preempted = serve(llm)
    assert outputs == roomy and preempted > 0 and connector(llm).counts["swapped_in_tokens"] > 0
