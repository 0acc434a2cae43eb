"""The scheduler's half answers as vLLM 0.22.1's does, call by call; ranks read the same heads from the same ones."""

import json
from types import SimpleNamespace

import pytest

from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.scheduler import NixlConnectorScheduler
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.tp_mapping import TransferTopology, compute_tp_mapping
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.utils import NixlSettings
from mini_vllm.request import RequestStatus
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import transfer_config
from mini_vllm.tests.golden.nixl_workload import BLOCK_SIZE, Player, meta_of
from mini_vllm.tests.golden.replay_compare import recording

NO_NEW_BLOCKS = SimpleNamespace(scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[]))


def golden():
    return recording("nixl.json.xz")


def play(seed, clock, num_calls):
    settings = NixlSettings.of(KVTransferConfig(**transfer_config()))
    config = SimpleNamespace(block_size=BLOCK_SIZE, tensor_parallel_size=1)
    half = NixlConnectorScheduler(config, "here", settings)

    def build():
        meta = half.build_connector_meta(NO_NEW_BLOCKS)
        loads = {name: [load.local_block_ids, vars(load.remote)] for name, load in meta.reqs_to_recv.items()}
        return meta_of(meta, clock.time, loads)

    def forward(seconds):
        clock.time += seconds

    return Player(half, seed, RequestStatus.__getitem__, build, forward).run(num_calls)


@pytest.mark.parametrize("fifth", range(5))
def test_every_answer_equals_real_vllm(fifth, monkeypatch, clock):
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")
    runs = golden()["runs"]
    for seed in range(fifth, len(runs), 5):
        clock.time = 1000.0
        ours = json.loads(json.dumps(play(seed, clock, golden()["provenance"]["calls"])))
        assert len(ours) == len(runs[seed])
        for index, (one, theirs) in enumerate(zip(ours, runs[seed], strict=True)):
            assert one == theirs, f"seed {seed}, answer {index}: {theirs} of vLLM, {one} of ours"


def test_the_recording_is_wide_enough():
    said = [each for run in golden()["runs"] for each in run]
    ends = [each for each in said if each[0] == "end"]
    metas = [each[1] for each in said if each[0] == "meta"]
    assert sum(each[3] for each in ends) > 20 < sum(not each[3] for each in ends)
    for key in ("recv", "send", "batch", "dropped", "heartbeats"):
        assert sum(bool(meta[key]) for meta in metas) > 10, key
    assert any(not local for meta in metas for local, _ in meta["recv"].values())


def test_ranks_read_from_the_same_ranks():
    for here, rank, there, heads, is_mla, ranks, offset in golden()["mappings"]:
        topology = TransferTopology(rank, here, heads, is_mla)
        specs = compute_tp_mapping(topology, there)
        asked = f"rank {rank} of {here} from {there}, {heads} heads, mla={is_mla}"
        assert [spec.remote_rank for spec in specs] == ranks, asked
        if len(specs) == 1 and not is_mla and here > there:
            assert specs[0].remote_head == offset * specs[0].num_heads, asked
