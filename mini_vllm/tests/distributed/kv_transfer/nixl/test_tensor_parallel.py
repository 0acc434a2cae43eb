"""Engines with different numbers of ranks: heads are split and merged on the way."""

import itertools
from collections import Counter

import pytest

from mini_vllm import LLM
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.tp_mapping import (
    ReadSpec,
    TransferTopology,
    compute_tp_mapping,
    heads_of_rank,
)
from mini_vllm.distributed.shared_memory import is_supported
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import (
    PROMPTS,
    be_patient,
    decode,
    drained,
    ended,
    greedy,
    make,
    needs_pocket,
    prefill,
    tokens_of,
    transfer_config,
)
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.models.decoder_checkpoints import save_decoder

pytestmark = [
    needs_pocket,
    pytest.mark.skipif(not is_supported(), reason="ranks need Linux on x86-64"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def plain():
    return tokens_of(LLM(str(POCKET), dtype="float64").generate(PROMPTS, greedy(), use_tqdm=False))


@pytest.mark.parametrize(
    ("of_p", "of_d", "backend"),
    [
        ({}, {"tensor_parallel_size": 2}, "tcp"),
        pytest.param({"tensor_parallel_size": 2}, {"block_size": 8}, "shm", marks=pytest.mark.slow),
        *(
            pytest.param(*each, "tcp", marks=pytest.mark.slow)
            for each in [
                ({"tensor_parallel_size": 2}, {"tensor_parallel_size": 2}),
                ({"tensor_parallel_size": 2, "async_scheduling": True}, {"tensor_parallel_size": 4}),
                ({"tensor_parallel_size": 4}, {"tensor_parallel_size": 1, "async_scheduling": True}),
            ]
        ),
    ],
)
def test_heads_are_split_and_merged(of_p, of_d, backend, plain):
    extra = {"backends": [backend]}
    with ended(make(extra=extra, dtype="float64", **of_p), make(extra=extra, dtype="float64", **of_d)) as (p, d):
        for each in (p, d):
            each.llm_engine.collective_rpc(be_patient)
        for _ in range(2):
            params = prefill(p, PROMPTS)
            assert params[0]["tp_size"] == of_p.get("tensor_parallel_size", 1)
            assert tokens_of(decode(d, PROMPTS, params)) == plain
            drained(p, d)
        assert d.llm_engine.scheduler.connector.prefix_cache_stats.hits > 0


def test_every_rank_gets_each_of_its_heads_once_and_every_producer_hears_of_all_its_readers():
    sizes = (1, 2, 4, 8)
    for total, here, there in itertools.product((1, 2, 4, 8), sizes, sizes):
        told = Counter()
        for rank in range(here):
            topology = TransferTopology(rank, here, total)
            told.update(topology.handshake_target_ranks(there))
            first, count = heads_of_rank(rank, here, total)
            found = []
            for spec in compute_tp_mapping(topology, there):
                assert spec.local_head == len(found)
                start, num = heads_of_rank(spec.remote_rank, there, total)
                assert spec.remote_head + spec.num_heads <= num
                found += range(start + spec.remote_head, start + spec.remote_head + spec.num_heads)
            assert found == list(range(first, first + count))
        for rank in range(there):
            assert told[rank] == TransferTopology(rank, there, total).consumers_per_producer(here)
    with pytest.raises(ValueError, match="must be a multiple of the other's: 2 here, 3 there"):
        compute_tp_mapping(TransferTopology(0, 2, 6), 3)
    assert compute_tp_mapping(TransferTopology(1, 2, 1, is_mla=True), 4) == [ReadSpec(2, 0, 0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("of_p", "of_d"), [(1, 2), (2, 1), (4, 2)])
def test_latents_are_the_same_on_every_rank(of_p, of_d, tmp_path):
    folder = str(save_decoder("deepseek-v2", tmp_path))
    prompts = [{"prompt_token_ids": list(range(3, 3 + length))} for length in (5, 17, 33)]
    settings = {"dtype": "float64", "num_blocks": 64}
    expected = tokens_of(LLM(folder, **settings).generate(prompts, greedy(), use_tqdm=False))
    p, d = (
        LLM(folder, tensor_parallel_size=size, kv_transfer_config=transfer_config(), **settings)
        for size in (of_p, of_d)
    )
    with ended(p, d):
        for each in (p, d):
            each.llm_engine.collective_rpc(be_patient)
        assert tokens_of(decode(d, prompts, prefill(p, prompts))) == expected
        drained(p, d)
        assert d.llm_engine.scheduler.connector.prefix_cache_stats.hits == 55
