"""With two to four batches in flight core and scheduler decide as the real ones of vLLM 0.22.1: what is planned while
results are out, who is passed over, when a result is taken in, what stages are told; with drafts, resets, aborts."""

import pytest

from mini_vllm.tests.golden.pipeline_workload import make_pipeline_workload, make_reset_in_flight
from mini_vllm.tests.golden.replay_compare import assert_no_difference, in_parts, notices, recording
from mini_vllm.tests.golden.replay_pipeline import PipelineReplay
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-pipeline.json.xz"
PARTS = 22
FIELDS = ("tokens", "requests", "victims", "batch taken in", "checksum over all")
pytestmark = pytest.mark.usefixtures("same_start_of_all_hashes")


def golden():
    return recording(TRACES.name)


def first_difference(seed):
    """None, or the first step at which the two part, and a description of it."""
    workload = make_pipeline_workload(seed)
    replay = PipelineReplay(workload)
    for index, theirs in enumerate(golden()["traces"][seed]["steps"]):
        ours = replay.step(index)
        if ours != theirs:
            parts = {name: both for name, *both in zip(FIELDS, theirs, ours, strict=True) if both[0] != both[1]}
            return index, f"workload {seed} {workload.config}, step {index}, real and ours: {parts}"
    return (-1, f"workload {seed}: ours goes on") if replay.is_busy() else None


@in_parts(PARTS)
def test_every_decision_equals_real_vllm(part):
    assert_no_difference(first_difference, range(part, len(golden()["traces"]), PARTS))


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 60 and provenance["steps"] >= 6_000
    assert provenance["steps_with_preemption"] >= 500
    assert min(provenance["seen"].values()) >= 100, provenance["seen"]
    assert min(provenance["workloads_by_feature"].values()) >= 5, provenance["workloads_by_feature"]
    assert TRACES.stat().st_size <= 150_000


def test_the_release_computes_a_token_twice_and_we_do_not():
    """A reset while the step of a prompt is in flight: the release plans the same four tokens again, and takes the
    token behind them from both steps. We wait for the first."""
    theirs = golden()["unpatched"]
    assert theirs[:2] == [[[["r0", 4]], [["r0", 0]]]] * 2
    replay, ours = PipelineReplay(make_reset_in_flight()), []
    for index in range(4):
        replay.step(index)
        plan = replay.last["plan"]
        ours.append([list(map(list, plan["tokens"])), [[row[0], row[2]] for row in plan["new"] + plan["cached"]]])
    assert ours[:3] == [theirs[0], [[], []], [[["r0", 5]], [["r0", 0]]]]


MUTATIONS = {
    "one queue for two": 6,
    "a result that is there waits": 13,
    "nothing is sent back": 0,
    "nobody waits for a token in flight": 0,
    "drafts in flight count": 0,
    "a reset drops one result": 8,
    "filled blocks are found late": 1,
}
"""And the first workload in which it shows."""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_replay_would_notice(mutation, monkeypatch):
    from mini_vllm.core.sched.drafts import Drafts
    from mini_vllm.engine import batch_queue
    from mini_vllm.request import Request
    from mini_vllm.tests.golden.pipeline_workload import Pending

    if mutation == "one queue for two":
        made = batch_queue.BatchQueue.__init__
        monkeypatch.setattr(batch_queue.BatchQueue, "__init__", lambda self, core, size: made(self, core, 2))
    elif mutation == "a result that is there waits":
        monkeypatch.setattr(Pending, "done", lambda self: False)
    elif mutation == "nothing is sent back":
        monkeypatch.setattr(batch_queue, "send_back", lambda plan, requests: None)
    elif mutation == "nobody waits for a token in flight":
        monkeypatch.setattr(Request, "try_promote", lambda self: True)
    elif mutation == "drafts in flight count":
        update = Drafts.update_draft_token_ids

        def all_of_them(self, requests, draft_token_ids):
            update(self, requests, draft_token_ids)
            for request in requests.values():
                request.spec_token_ids = request.spec_token_ids or [0]

        monkeypatch.setattr(Drafts, "update_draft_token_ids", all_of_them)
    elif mutation == "filled blocks are found late":
        from mini_vllm.core.kv_cache_manager import KVCacheManager

        monkeypatch.setattr(KVCacheManager, "_lags", lambda self, request, last: False)
    else:
        from mini_vllm.core.sched.request_table import RequestTable

        preempt_all = RequestTable.preempt_all

        def one(self):
            preempt_all(self)
            for request in self.requests.values():
                request.async_tokens_to_discard = min(request.async_tokens_to_discard, 1)

        monkeypatch.setattr(RequestTable, "preempt_all", one)
    assert notices(first_difference, [MUTATIONS[mutation], *range(60)])
