"""With adapters the scheduler decides as the real one of vLLM 0.22.1: who is passed over, in which order they wait, and
whose cached blocks are found by whom."""

import pytest

from mini_vllm.core.sched.lora_slots import LoRASlots
from mini_vllm.tests.golden.lora_replay import LoRAReplay
from mini_vllm.tests.golden.lora_workload import make_lora_workload
from mini_vllm.tests.golden.replay_compare import assert_no_difference, first_parting, in_parts, notices, recording
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-loras.json.xz"
PARTS = 12
pytestmark = pytest.mark.usefixtures("same_start_of_all_hashes")


def golden():
    return recording(TRACES.name)


def first_difference(seed):
    """None, or the first step at which the two schedulers part, and a description of it."""
    return first_parting(LoRAReplay(make_lora_workload(seed)), golden()["traces"][seed]["steps"])


@in_parts(PARTS, fast=2)
def test_every_decision_equals_real_vllm(part):
    assert_no_difference(first_difference, range(part, len(golden()["traces"]), PARTS))


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 60 and provenance["steps"] >= 4_000
    assert provenance["steps_with_skipped"] >= 1_000 and provenance["steps_with_preemption"] >= 100
    assert min(provenance["workloads_by_feature"].values()) >= 4, provenance["workloads_by_feature"]
    assert TRACES.stat().st_size <= 400_000


@pytest.mark.parametrize("mutation", ["no limit", "an adapter that runs may not come again", "one slot fewer"])
def test_the_replay_would_notice(mutation, monkeypatch):
    original = LoRASlots.has_slot

    def changed(self, request):
        if mutation == "no limit":
            return True
        if mutation == "one slot fewer":
            return original(self, request) and len(self.scheduled_loras) + 1 < self.max_loras
        return request.lora_request is None or len(self.scheduled_loras) < self.max_loras

    monkeypatch.setattr(LoRASlots, "has_slot", changed)

    assert notices(first_difference, range(20))
