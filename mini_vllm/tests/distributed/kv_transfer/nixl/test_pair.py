"""P computes prompts, D reads their keys and values and goes on: the tokens are those of one engine, whatever the sizes
of their blocks are, and no block is kept on either side."""

import threading

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.lora.request import LoRARequest
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import (
    PROMPTS,
    all_heard,
    decode,
    drain,
    drained,
    ended,
    greedy,
    make,
    needs_pocket,
    prefill,
    tokens_of,
)  # fmt: skip
from mini_vllm.tests.helpers import MODELS, POCKET

pytestmark = needs_pocket
PIRATE = MODELS / "pocket-lora-pirate"


@pytest.fixture(scope="module")
def plain():
    return {
        dtype: tokens_of(LLM(str(POCKET), dtype=dtype).generate(PROMPTS, greedy(), use_tqdm=False))
        for dtype in ("float32", "float64")
    }


SETTINGS = [
    ({}, {}),
    ({"block_size": 8}, {"block_size": 16}),
    ({"block_size": 16}, {"block_size": 8}),
    ({"block_size": 12}, {"block_size": 16}),
    ({"async_scheduling": True}, {"async_scheduling": True}),
    ({"max_num_batched_tokens": 16}, {"max_num_batched_tokens": 16}),
    ({"enable_prefix_caching": False}, {"enable_prefix_caching": False}),
    ({"dtype": "float64"}, {"dtype": "float64", "block_size": 8}),
]
FAST = {("tcp", 0), ("tcp", 1), ("shm", 2)}


@pytest.mark.parametrize(
    ("backend", "of_p", "of_d"),
    [
        pytest.param(backend, *each, marks=() if (backend, i) in FAST else pytest.mark.slow)
        for i, each in enumerate(SETTINGS)
        for backend in ("tcp", "shm")
    ],
)
def test_the_tokens_of_one_engine_and_no_block_is_lost(backend, of_p, of_d, plain):
    with ended(
        make("kv_producer", extra={"backends": [backend]}, **of_p),
        make("kv_consumer", extra={"backends": [backend]}, **of_d),
    ) as (p, d):
        for _ in range(2):  # the second time D has most of it itself
            params = prefill(p, PROMPTS)
            assert p.llm_engine.engine_core.kv_cache_manager.usage > 0.0
            outputs = decode(d, PROMPTS, params)
            assert tokens_of(outputs) == plain[of_p.get("dtype", "float32")]
            drained(p, d)
        stats = d.llm_engine.scheduler.connector.prefix_cache_stats
        assert stats.hits > 0 and [output.outputs[0].finish_reason for output in outputs] == ["length"] * len(PROMPTS)


def test_the_parameters_are_upstreams_and_threads_end():
    before = set(threading.enumerate())
    with ended(make("kv_producer")) as (p,):
        (params,) = prefill(p, PROMPTS[:1])
        assert params.pop("remote_port") > 0
        assert params.pop("remote_engine_id") == p.llm_engine.config.kv_transfer_config.engine_id
        assert params == {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3]],
            "remote_request_id": "0", "remote_host": "localhost", "tp_size": 1, "remote_num_tokens": 48,
        }  # fmt: skip
        begun = set(threading.enumerate()) - before
        assert begun
    for thread in begun:
        thread.join(60)
    assert not any(thread.is_alive() for thread in begun)


@pytest.mark.skipif(not PIRATE.is_dir(), reason="models/pocket-lora-pirate is not here")
def test_adapters_are_not_mixed():
    adapter, settings = LoRARequest("pirate", 1, str(PIRATE)), {"enable_lora": True, "max_lora_rank": 16}
    one = LLM(str(POCKET), **settings)
    wanted, plain = (
        tokens_of(one.generate(PROMPTS[:1], greedy(), use_tqdm=False, lora_request=each)) for each in (adapter, None)
    )
    assert wanted != plain
    with ended(make(**settings), make(policy="recompute", **settings)) as (p, d):
        for of_p in (adapter, None):
            for of_d, expected in ((adapter, wanted), (None, plain)):
                params, before = prefill(p, PROMPTS[:1], lora_request=of_p), num_failed(d)
                assert tokens_of(decode(d, PROMPTS[:1], params, lora_request=of_d)) == expected
                drain(d)
                assert num_failed(d) - before == (of_p is not of_d)
                d.reset_prefix_cache()


@pytest.mark.parametrize("caching", [pytest.param(True, marks=pytest.mark.slow), False])
def test_completions_of_one_prompt_have_one_load(caching, plain):
    with ended(make(), make(enable_prefix_caching=caching)) as (p, d):
        params = prefill(p, PROMPTS[:1])[0]
        most_likely = SamplingParams(
            n=3, top_k=1, max_tokens=6, ignore_eos=True, extra_args={"kv_transfer_params": params}
        )
        (output,) = d.generate(PROMPTS[:1], most_likely, use_tqdm=False)
        assert [each.token_ids for each in output.outputs] == plain["float32"][:1] * 3
        all_heard(d)
        stats = d.llm_engine.scheduler.connector.connector.connector_scheduler.stats
        assert stats.num_successful_transfers == 1 and not stats.num_failed_transfers
        params = prefill(p, PROMPTS[2:3])[0]
        for name in "abc":
            d.llm_engine.add_request(name, PROMPTS[2], greedy(6, params))
        d.llm_engine.abort_request(["a"])  # P must not free for this one
        assert p.llm_engine.engine_core.kv_cache_manager.usage > 0
        ended_well = []
        while d.llm_engine.has_unfinished_requests():
            ended_well += [each.outputs[0].token_ids for each in d.llm_engine.step() if each.finished]
        assert ended_well == plain["float32"][2:3] * 2
        drained(p, d)


def num_failed(d):
    """Loads that went wrong, of the engine's life."""
    return d.llm_engine.scheduler.connector.connector.connector_scheduler.stats.num_failed_transfers


def test_one_transfer_for_a_request_and_none_without_parameters(plain):
    with ended(make(), make()) as (p, d):
        outputs = d.generate(PROMPTS, greedy(), use_tqdm=False)
        assert tokens_of(outputs) == plain["float32"] and outputs[0].kv_transfer_params is None
        assert d.llm_engine.scheduler.connector.prefix_cache_stats.hits == 0
        params = prefill(p, PROMPTS[2:3])
        d.reset_prefix_cache()
        assert tokens_of(decode(d, PROMPTS[2:3], params)) == plain["float32"][2:3]
        assert drain(p) < 50
        d.reset_prefix_cache()
        again = decode(d, PROMPTS[2:3], params)  # P has freed these blocks
        assert again[0].outputs[0].finish_reason == "error"
        drained(p, d)
