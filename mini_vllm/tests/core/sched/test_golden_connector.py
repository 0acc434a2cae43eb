"""With a KV connector the scheduler decides as the real one of vLLM 0.22.1: whose tokens are loaded and when, who waits
for them, whose blocks are kept, who goes back or ends when a load fails; with drafts, groups, priorities, resets."""

import pytest

from mini_vllm.tests.golden.connector_workload import make_connector_workload
from mini_vllm.tests.golden.replay_compare import assert_no_difference, first_parting, in_parts, notices, recording
from mini_vllm.tests.golden.replay_connector import ConnectorReplay
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-connector.json.xz"
PARTS = 26
pytestmark = pytest.mark.usefixtures("same_start_of_all_hashes")


def golden():
    return recording(TRACES.name)


def first_difference(seed):
    """None, or the first step at which the two schedulers part, and a description of it."""
    return first_parting(ConnectorReplay(make_connector_workload(seed)), golden()["traces"][seed]["steps"])


@in_parts(PARTS, fast=2)
def test_every_decision_equals_real_vllm(part):
    assert_no_difference(first_difference, range(part, len(golden()["traces"]), PARTS))


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 80 and provenance["steps"] >= 6_000
    assert provenance["steps_with_preemption"] >= 500
    worker = provenance["worker"]
    assert min(worker["sent"], worker["received"], worker["blocks_that_failed"]) >= 1_000 and worker["failed"] >= 100
    assert min(provenance["workloads_by_feature"].values()) >= 10, provenance["workloads_by_feature"]
    assert TRACES.stat().st_size <= 400_000


MUTATIONS = [
    "what loads can be found at once",
    "nothing is kept",
    "a whole prompt needs no last token",
    "invalid blocks stay findable",
    "nobody goes back",
    "a load under way is freed with its request",
    "nobody gives way",
    "what is in flight counts",
]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_replay_would_notice(mutation, monkeypatch):
    from mini_vllm.core.block_pool import BlockPool
    from mini_vllm.core.kv_cache_manager import KVCacheManager
    from mini_vllm.core.sched.load_failures import LoadFailures
    from mini_vllm.core.sched.remote_kv import RemoteKV

    seeds = range(40)
    if mutation == "what loads can be found at once":
        allocate = KVCacheManager.allocate_slots

        def at_once(self, *args):
            return allocate(self, *args[:6], False, *args[7:])

        monkeypatch.setattr(KVCacheManager, "allocate_slots", at_once)
    elif mutation == "a whole prompt needs no last token":
        promote = RemoteKV.try_promote

        def whole(self, request):
            computed, ready = request.num_computed_tokens, promote(self, request)
            request.num_computed_tokens = computed if ready and computed else request.num_computed_tokens
            return ready

        monkeypatch.setattr(RemoteKV, "try_promote", whole)
    elif mutation == "invalid blocks stay findable":
        monkeypatch.setattr(BlockPool, "evict_blocks", lambda self, blocks: None)
    elif mutation == "nobody goes back":
        monkeypatch.setattr(LoadFailures, "_go_back", lambda self, request, invalid, num_scheduled: None)
    elif mutation == "a load under way is freed with its request":
        monkeypatch.setattr(RemoteKV, "stop_waiting", lambda self, request: False)
    elif mutation == "nobody gives way":
        monkeypatch.setattr(RemoteKV, "make_room", lambda self, table, first: None)
        seeds = [1, 15, 37]  # those that never ended before the release was patched
    elif mutation == "what is in flight counts":
        monkeypatch.setattr(LoadFailures, "_drop_in_flight", lambda self, request, output, result: None)
    else:
        monkeypatch.setattr(RemoteKV, "request_finished", lambda self, request: (False, None))
    assert notices(first_difference, seeds)
