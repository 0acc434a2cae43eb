"""Step by step, the scheduler decides as the real one of vLLM 0.22.1 decided: tokens, block ids, hits, preemptions."""

import pytest

from mini_vllm.tests.golden.replay import Replay
from mini_vllm.tests.golden.replay_compare import first_parting, recording
from mini_vllm.tests.golden.scheduler_workload import make_pressed_workload, make_workload
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-traces.json.xz"
BUGS = TRACES.with_name("scheduler-bugs.json.xz")
GROUPS = 10


def golden():
    return recording(TRACES.name)


def first_difference(workload, trace):
    """None, or the first step at which the two schedulers part, and a description of it."""
    return first_parting(Replay(workload), trace)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_decision_equals_real_vllm(group):
    traces = golden()["traces"]
    for seed in range(group, len(traces), GROUPS):
        difference = first_difference(make_workload(seed), traces[seed])
        assert difference is None, difference[1]


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 300 and provenance["steps"] >= 20_000
    assert provenance["steps_with_preemption"] >= 2_000
    assert min(provenance["workloads_by_feature"].values()) >= 20, provenance["workloads_by_feature"]
    assert TRACES.stat().st_size <= 4 << 20


def bugs():
    return recording(BUGS.name)["bugs"]


@pytest.mark.parametrize("bug", ["index-follows-removal", "forget-blocks-never-written"])
def test_where_the_real_scheduler_is_wrong_ours_does_what_the_patched_one_does(bug):
    """Each bug of the release on workloads that show it: equal to the end once it is patched (`upstream_patches.py`
    says what and why); with the bug, equal up to the step where the two recordings part, and different there."""
    assert len(bugs()[bug]) >= 12
    for pair in bugs()[bug]:
        workload = make_pressed_workload(pair["seed"])
        difference = first_difference(workload, pair["patched"])
        assert difference is None, difference[1]
        parted = first_difference(workload, pair["unpatched"])
        assert parted is not None and parted[0] == pair["parts_at"]


@pytest.mark.parametrize("mutation", ["free order", "one block fewer hit", "preempt the oldest"])
def test_the_replay_would_notice(mutation, monkeypatch):
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from mini_vllm.core.sched.scheduler import Scheduler

    if mutation == "free order":

        def free_head_first(self, request):
            blocks = self.req_to_blocks.pop(request.request_id, [])
            self.coordinator.single_type_managers[0].num_cached_block.pop(request.request_id, None)
            self.block_pool.free_blocks(blocks)

        monkeypatch.setattr(KVCacheManager, "free", free_head_first)
    elif mutation == "one block fewer hit":
        original = KVCacheManager.get_computed_blocks

        def timid_hit(self, request):
            hits, count = original(self, request)
            return (KVCacheBlocks((hits.blocks[0][:-1],)), count - self.block_size) if count else (hits, count)

        monkeypatch.setattr(KVCacheManager, "get_computed_blocks", timid_hit)
    else:

        def preempt_oldest(self, step):
            victim = self.running.pop(0)
            if victim.request_id in step.num_scheduled_tokens:
                step.remove(victim)
            self.table.preempt_request(victim)
            step.preempted.append(victim)
            return 0

        monkeypatch.setattr(Scheduler, "_preempt_one", preempt_oldest)
    traces = golden()["traces"]
    assert any(first_difference(make_workload(seed), traces[seed]) for seed in range(60))
