"""P computes prompts, D reads their keys and values and goes on: the tokens are those of one engine, whatever the sizes
of their blocks are, and no block is kept on either side."""

import threading

import pytest

from mini_vllm import LLM
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import (
    PROMPTS,
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
from mini_vllm.tests.helpers import POCKET

pytestmark = needs_pocket


@pytest.fixture(scope="module")
def plain():
    return {
        dtype: tokens_of(LLM(str(POCKET), dtype=dtype).generate(PROMPTS, greedy(), use_tqdm=False))
        for dtype in ("float32", "float64")
    }


@pytest.mark.parametrize(
    ("of_p", "of_d"),
    [
        ({}, {}),
        ({"block_size": 8}, {"block_size": 16}),
        ({"block_size": 16}, {"block_size": 8}),
        pytest.param({"block_size": 12}, {"block_size": 16}, marks=pytest.mark.slow),
        pytest.param({"async_scheduling": True}, {"async_scheduling": True}, marks=pytest.mark.slow),
        pytest.param({"max_num_batched_tokens": 16}, {"max_num_batched_tokens": 16}, marks=pytest.mark.slow),
        pytest.param({"enable_prefix_caching": False}, {"enable_prefix_caching": False}, marks=pytest.mark.slow),
        pytest.param({"dtype": "float64"}, {"dtype": "float64", "block_size": 8}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("backend", ["tcp", "shm"])
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
    before = threading.active_count()
    with ended(make("kv_producer")) as (p,):
        (params,) = prefill(p, PROMPTS[:1])
        assert params.pop("remote_port") > 0
        assert params.pop("remote_engine_id") == p.llm_engine.config.kv_transfer_config.engine_id
        assert params == {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3]],
            "remote_request_id": "0", "remote_host": "localhost", "tp_size": 1, "remote_num_tokens": 48,
        }  # fmt: skip
        assert threading.active_count() > before
    assert threading.active_count() == before


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
