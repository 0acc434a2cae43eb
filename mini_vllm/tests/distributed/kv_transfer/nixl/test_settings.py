"""What the connector takes, and what it refuses by name; and how ranks' reports become one."""

import pytest

from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed.kv_transfer.kv_connector.base import supports_hma
from mini_vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import NixlConnector
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.stats import NixlKVConnectorStats
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.utils import NixlSettings
from mini_vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from mini_vllm.outputs import KVConnectorOutput, ModelRunnerOutput
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import ended, make, needs_pocket, transfer_config


def settings(**extra):
    return NixlSettings.of(KVTransferConfig(**transfer_config(extra=extra)))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"backend": ["tcp"]}, "unknown key 'backend'; did you mean 'backends'"),
        ({"backends": "tcp"}, r"\['backends'\] must be a list of \('tcp', 'shm'\), got 'tcp'"),
        ({"backends": []}, r"\['backends'\] must be a list of .*, got \[\]"),
        ({"backends": ["UCX"]}, r"\['backends'\] must be one of \('tcp', 'shm'\), got 'UCX'"),
        ({"kv_lease_duration": 0}, "kv_lease_duration must be at least 1, got 0"),
        ({"kv_lease_duration": 0.5}, "kv_lease_duration must be a whole number, got 0.5"),
        ({"num_threads": 0}, "num_threads must be at least 1"),
        ({"enforce_handshake_compat": "no"}, "enforce_handshake_compat must be True or False, got 'no'"),
        ({"bidirectional_kv_xfer": True}, r"\['bidirectional_kv_xfer'\] must be False here, got True"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(extra, message):
    with pytest.raises(ValueError, match=message):
        settings(**extra)


def test_what_is_taken(monkeypatch):
    assert settings(backends=["shm", "tcp", "shm"]).backends == ("shm", "tcp")
    assert settings(kv_recompute_threshold=3, bidirectional_kv_xfer=False).kv_lease_duration == 30
    monkeypatch.delenv("VLLM_NIXL_SIDE_CHANNEL_PORT")
    assert (settings().side_channel_host, settings().side_channel_port) == ("localhost", 5600)
    for port in ("x", "65536", "-1"):
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", port)
        with pytest.raises(ValueError, match=f"VLLM_NIXL_SIDE_CHANNEL_PORT must be a port .*got '{port}'"):
            settings()


def test_ranks_are_taken_and_groups_become_one():
    config = EngineConfig(kv_transfer_config=transfer_config(), tensor_parallel_size=2)
    assert KVConnectorFactory.get_connector_class(config.kv_transfer_config) is NixlConnector
    assert config.disable_hybrid_kv_cache_manager is not supports_hma(NixlConnector)


@needs_pocket
def test_a_port_that_is_taken_is_named(monkeypatch):
    with ended(make()) as (llm,):
        port = llm.llm_engine.scheduler.connector.connector.connector_scheduler.side_channel_port
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port))
        with pytest.raises(ValueError, match=f"VLLM_NIXL_SIDE_CHANNEL_PORT 'localhost:{port}': Address already in use"):
            make()


def test_a_transfer_is_over_when_every_rank_has_said_so():
    aggregator = KVOutputAggregator(2)

    def step(*reports):
        outputs = [ModelRunnerOutput([], [], kv_connector_output=report) for report in reports]
        return aggregator.aggregate(outputs).kv_connector_output

    assert step(None, None) is None
    assert step(KVConnectorOutput({"a"}, {"b"}), None) is None
    found = step(KVConnectorOutput(None, {"c"}), KVConnectorOutput({"a"}, {"c"}, invalid_block_ids={3}))
    assert (found.finished_sending, found.finished_recving, found.invalid_block_ids) == ({"a"}, {"c"}, {3})
    one, other = NixlKVConnectorStats([1.0], [2**20], [4]), NixlKVConnectorStats(num_failed_transfers=2)
    found = step(
        KVConnectorOutput(kv_connector_worker_meta=one),
        KVConnectorOutput(None, {"b"}, kv_connector_worker_meta=other),
    )
    assert found.finished_recving == {"b"}
    assert found.kv_connector_worker_meta == NixlKVConnectorStats([1.0], [2**20], [4], num_failed_transfers=2)
    assert str(found.kv_connector_worker_meta) == (
        "Num successful transfers=1, Avg xfer time (ms)=1000.0, P90 xfer time (ms)=1000.0, Avg MB per transfer=1.0, "
        "Throughput (MB/s)=1.0, Avg number of descriptors=4.0"
    )
