"""The scheduler's half of the offloading connector: every answer and every order as the real one's, step by step."""

from types import SimpleNamespace

import pytest

from mini_vllm.distributed.kv_transfer.kv_connector.offloading.common import OffloadingWorkerMetadata
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.scheduler import OffloadingConnectorScheduler
from mini_vllm.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from mini_vllm.kv_offload.cpu.manager import CPUOffloadingManager
from mini_vllm.tests.golden.offload_connector_workload import NUM_SEEDS, OffloadConnectorWorkload, packed, spec_of
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN


def make_half(settings):
    groups = []
    for window, size in settings["groups"]:
        common = {"block_size": size, "num_kv_heads": 1, "head_size": 64 // size}
        kind = FullAttentionSpec(**common) if window is None else SlidingWindowSpec(**common, sliding_window=window)
        groups.append(SimpleNamespace(kv_cache_spec=kind))
    manager = CPUOffloadingManager(settings["host"], settings["policy"], True, settings["threshold"])
    config = SimpleNamespace(enable_prefix_caching=settings["caching"])
    return OffloadingConnectorScheduler(
        spec_of(
            settings, vllm_config=config, kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
            get_manager=lambda: manager,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded():
    return read_packed(GOLDEN / "offload-connector.json.xz")


@pytest.mark.parametrize("num_seeds", [20, pytest.param(NUM_SEEDS, marks=pytest.mark.slow)])
def test_every_answer_and_order_is_vllms(num_seeds, recorded):
    for seed, trace in enumerate(recorded["traces"][:num_seeds]):
        lines = OffloadConnectorWorkload(seed, make_half, OffloadingWorkerMetadata).run()
        for number, line in enumerate(recorded["samples"].get(str(seed), ())):
            assert lines[number] == line, f"seed {seed}, step {number}"
        found = packed(lines)
        at = next((i // 4 for i in range(0, len(trace), 4) if trace[i : i + 4] != found[i : i + 4]), None)
        assert found == trace, f"seed {seed}, step {at}: {lines[at or 0]}"


def test_the_recording_has_all_that_there_is(recorded):
    counts = recorded["provenance"]["counts"]
    assert all(counts[kind] > 100 for kind in ("loads", "stores", "flushes", "asked again later", "preemptions")), (
        counts
    )
    assert len(recorded["traces"]) == NUM_SEEDS and recorded["provenance"]["stopped"] == []


def test_no_block_is_in_two_groups():
    """The pinned release gives hits of the second group to the first as new blocks, and stops here."""
    workload = OffloadConnectorWorkload(14, make_half, OffloadingWorkerMetadata)
    managers = workload.scheduler.kv_cache_manager.coordinator.single_type_managers
    answered = workload.half.update_state_after_alloc
    groups_of_blocks = []

    def look(request, blocks, num_external_tokens):
        held = [{block.block_id for block in group if not block.is_null} for group in blocks.blocks]
        assert not set.intersection(*held)
        groups_of_blocks.append(len(held))
        answered(request, blocks, num_external_tokens)

    workload.half.update_state_after_alloc = look
    workload.run()
    assert len(managers) == 2 and groups_of_blocks.count(2) > 10
