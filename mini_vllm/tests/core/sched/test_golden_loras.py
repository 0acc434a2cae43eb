"""With adapters the scheduler decides as the real one of vLLM 0.22.1: who is passed over, in which order they wait, and
whose cached blocks are found by whom."""

import gzip
import json
from functools import lru_cache

import pytest

from mini_vllm.core.sched.lora_gate import LoRAGate
from mini_vllm.tests.golden.lora_workload import make_lora_workload
from mini_vllm.tests.golden.replay import LoRAReplay, two_columns
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-loras.json.gz"
PARTS = 12


@lru_cache
def golden():
    return json.loads(gzip.decompress(TRACES.read_bytes()))


@pytest.fixture(autouse=True)
def same_start_of_all_hashes(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def first_difference(seed):
    """None, or a description of the first step at which the two schedulers part."""
    trace, workload = golden()["traces"][seed], make_lora_workload(seed)
    replay = LoRAReplay(workload)
    for index, theirs in enumerate(trace["steps"]):
        ours = replay.step(index)
        if ours != theirs:
            return f"workload {seed} {workload.config}, step {index}:\n{two_columns(theirs, ours)}"
    return "ours goes on" if replay.scheduler.has_unfinished_requests() else None


@pytest.mark.parametrize("part", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, PARTS))])
def test_every_decision_equals_real_vllm(part):
    for seed in range(part, len(golden()["traces"]), PARTS):
        difference = first_difference(seed)
        assert difference is None, difference


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 60 and provenance["steps"] >= 4_000
    assert provenance["steps_with_skipped"] >= 1_000 and provenance["steps_with_preemption"] >= 100
    assert min(provenance["workloads_by_feature"].values()) >= 4, provenance["workloads_by_feature"]
    assert TRACES.stat().st_size <= 400_000


@pytest.mark.parametrize("mutation", ["no limit", "an adapter that runs may not come again", "one slot fewer"])
def test_the_replay_would_notice(mutation, monkeypatch):
    original = LoRAGate._has_lora_slot

    def changed(self, request):
        if mutation == "no limit":
            return True
        if mutation == "one slot fewer":
            return original(self, request) and len(self.scheduled_loras) + 1 < self.max_loras
        return request.lora_request is None or len(self.scheduled_loras) < self.max_loras

    monkeypatch.setattr(LoRAGate, "_has_lora_slot", changed)

    def parts(seed):
        try:
            return first_difference(seed)
        except (AssertionError, ValueError, IndexError, KeyError):
            return "it breaks"

    assert any(parts(seed) for seed in range(20))
