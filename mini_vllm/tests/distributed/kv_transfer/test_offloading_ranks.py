"""Offloading with two ranks: each copies its share of every block, and a copy is over when it is over on both."""

import pytest

from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.common import OffloadingWorkerMetadata
from mini_vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from mini_vllm.outputs import KVConnectorOutput, ModelRunnerOutput
from mini_vllm.tests.distributed.kv_transfer.offloading import (
    conversations,
    hits_of,
    make,
    save,
    serve,
    tokens_of,
    worker_of,
)


@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
@pytest.mark.parametrize("kind", ["full", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_two_ranks_give_the_tokens_of_one(kind, tmp_path):
    folder, prompts = save(tmp_path, kind), conversations()
    plain = tokens_of(serve(make(folder, offload=False), prompts, rounds=3))
    llm = make(folder, num_blocks=40, tensor_parallel_size=2)
    try:
        outputs = serve(llm, prompts, rounds=3)
        assert tokens_of(outputs) == plain and hits_of(llm) > 0
        loaded = llm.llm_engine.collective_rpc(bytes_loaded)
        assert loaded[0] == loaded[1] == worker_of(llm).num_bytes["CPU", "GPU"] > 0
    finally:
        llm.llm_engine.engine_core.shutdown()


def bytes_loaded(worker):
    return worker.model_runner.kv_connector.kv_connector.connector_worker.num_bytes["CPU", "GPU"]


def report(sent=(), received=(), jobs=(), invalid=()):
    meta = OffloadingWorkerMetadata(dict.fromkeys(jobs, 1)) if jobs else None
    said = KVConnectorOutput(set(sent), set(received), None, meta, set(invalid))
    return ModelRunnerOutput([], [], kv_connector_output=None if said.is_empty() else said)


def test_a_transfer_has_ended_when_it_has_on_all_ranks():
    aggregator = KVOutputAggregator(2)
    first = aggregator.aggregate([report(received=["a"], jobs=[1]), report(sent=["b"], jobs=[1, 2], invalid=[7])])
    said = first.kv_connector_output
    assert said.finished_recving == said.finished_sending == set() and said.invalid_block_ids == {7}
    assert said.kv_connector_worker_meta.completed_jobs == {1: 2, 2: 1}
    assert aggregator.aggregate([report(), report()]).kv_connector_output is None
    last = aggregator.aggregate([report(sent=["b"]), report(received=["a"])]).kv_connector_output
    assert (last.finished_sending, last.finished_recving) == ({"b"}, {"a"})
    again = aggregator.aggregate([report(received=["a"]), report(received=["a"])]).kv_connector_output
    assert again.finished_recving == {"a"}
