"""With drafts the scheduler decides as the real one of vLLM 0.22.1: which drafts are scheduled, what is taken back,
whose blocks are whose; chunked, preempted, cached, by priority, ahead of the results."""

import pytest

from mini_vllm.tests.golden.draft_workload import EAGLE, make_draft_workload
from mini_vllm.tests.golden.replay import DraftReplay
from mini_vllm.tests.golden.replay_compare import assert_no_difference, first_parting, in_parts, notices, recording
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-drafts.json.xz"
PARTS = 20
pytestmark = pytest.mark.usefixtures("same_start_of_all_hashes")


def golden():
    return recording(TRACES.name)


def first_difference(seed):
    """None, or the first step at which the two schedulers part, and a description of it."""
    trace, replay = golden()["traces"][seed], DraftReplay(make_draft_workload(seed))
    parted = first_parting(replay, trace["steps"])
    if parted is None and replay.stats() != trace["stats"]:
        return len(trace["steps"]), f"workload {seed}: drafts counted {replay.stats()}, there {trace['stats']}"
    return parted


@in_parts(PARTS, fast=2)
def test_every_decision_equals_real_vllm(part):
    assert_no_difference(first_difference, range(part, len(golden()["traces"]), PARTS))


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 150 and provenance["steps"] >= 15_000
    assert provenance["steps_with_drafts"] >= 8_000 and provenance["steps_with_preemption"] >= 500
    assert provenance["num_draft_tokens"] > 1.5 * provenance["num_accepted_tokens"] > 10_000
    assert min(provenance["workloads_by_feature"].values()) >= 10, provenance["workloads_by_feature"]
    assert TRACES.stat().st_size <= 600_000


@pytest.mark.parametrize(
    "mutation",
    ["nothing is taken back", "a preemption keeps drafts", "drafts are hashed", "hits keep their last block"],
)
def test_the_replay_would_notice(mutation, monkeypatch):
    from mini_vllm.core.kv_cache_coordinator import KVCacheCoordinator
    from mini_vllm.core.kv_cache_manager import KVCacheManager
    from mini_vllm.core.sched.drafts import Drafts
    from mini_vllm.core.sched.request_table import RequestTable

    if mutation == "nothing is taken back":
        monkeypatch.setattr(Drafts, "take_back_rejected", lambda self, output, request, count: None)
    elif mutation == "a preemption keeps drafts":
        original = RequestTable.preempt_request

        def keeps(self, request):
            drafts = request.spec_token_ids
            original(self, request)
            request.spec_token_ids = drafts

        monkeypatch.setattr(RequestTable, "preempt_request", keeps)
    elif mutation == "hits keep their last block":
        monkeypatch.setattr(
            KVCacheCoordinator, "use_eagle", property(lambda self: False, lambda self, value: None), False
        )
    else:
        monkeypatch.setattr(KVCacheManager, "_lags", lambda self, request, last: False)

    seeds = EAGLE[:20] if mutation == "hits keep their last block" else range(40)
    assert notices(first_difference, seeds)
