"""Over KV cache groups the scheduler decides as the real one of vLLM 0.22.1: every table, the whole free queue, every
KV cache event; with sliding windows, with hybrids of full and sliding layers, and with one group."""

import pytest

from mini_vllm.tests.golden.group_workload import make_group_workload
from mini_vllm.tests.golden.replay import GroupReplay
from mini_vllm.tests.golden.replay_compare import assert_no_difference, first_parting, in_parts, recording
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-groups.json.xz"
PARTS = 10
pytestmark = pytest.mark.usefixtures("same_start_of_all_hashes")


def golden():
    return recording(TRACES.name)


def first_difference(seed):
    """None, or the first step at which the two schedulers part, and a description of it."""
    trace = golden()["traces"][seed]
    return first_parting(GroupReplay(make_group_workload(seed, trace["kind"])), trace["steps"])


@in_parts(PARTS, fast=2)
def test_every_decision_equals_real_vllm(part):
    assert_no_difference(first_difference, range(part, len(golden()["traces"]), PARTS))


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    kinds = [trace["kind"] for trace in golden()["traces"]]
    steps = [len(trace["steps"]) for trace in golden()["traces"] if trace["kind"] != "full"]
    assert len(kinds) - kinds.count("full") >= 80 and sum(steps) >= 10_000
    assert provenance["steps_with_preemption"] >= 500
    assert min(provenance["events"].values()) >= 50
    assert TRACES.stat().st_size <= 600_000


@pytest.mark.parametrize("mutation", ["window one longer", "keep what has left the window", "groups freed in turn"])
def test_the_replay_would_notice(mutation, monkeypatch):
    from mini_vllm.core.kv_cache_coordinator import KVCacheCoordinator
    from mini_vllm.core.sliding_window_manager import SlidingWindowManager

    if mutation == "window one longer":
        monkeypatch.setattr(
            SlidingWindowManager, "get_num_skipped_tokens", lambda self, n: max(0, n - self.sliding_window)
        )
    elif mutation == "keep what has left the window":
        monkeypatch.setattr(SlidingWindowManager, "remove_skipped_blocks", lambda self, request_id, computed: None)
    else:

        def free_last_group_first(self, request_id):
            for manager in reversed(self.single_type_managers):
                manager.free(request_id)

        monkeypatch.setattr(KVCacheCoordinator, "free", free_last_group_first)
    assert any(first_difference(seed) for seed in range(12))
