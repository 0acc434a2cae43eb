"""With media the scheduler decides as the real one of vLLM 0.22.1: what is encoded and when, where a chunk ends before
an item, what is forgotten; with items shared and masked, drafts, groups, priorities, resets, and encoder-decoders."""

import pytest

from mini_vllm.tests.golden.media_workload import make_media_connector_workload, make_media_workload
from mini_vllm.tests.golden.replay_compare import assert_no_difference, first_parting, in_parts, notices, recording
from mini_vllm.tests.golden.replay_media import MediaConnectorReplay, MediaReplay
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-media.json.xz"
PARTS = 20
pytestmark = pytest.mark.usefixtures("same_start_of_all_hashes")


def golden():
    return recording(TRACES.name)


def first_difference(seed):
    """None, or the first step at which the two schedulers part, and a description of it."""
    return first_parting(MediaReplay(make_media_workload(seed)), golden()["traces"][seed]["steps"])


@in_parts(PARTS)
def test_every_decision_equals_real_vllm(part):
    assert_no_difference(first_difference, range(part, len(golden()["traces"]), PARTS))


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 80 and provenance["steps"] >= 6_000
    assert provenance["steps_with_preemption"] >= 500
    assert min(provenance[name] for name in ("encoded", "forgotten", "steps_with_encoding")) >= 1_000
    rare = {name: count for name, count in provenance["workloads_by_feature"].items() if count < 7}
    assert not rare
    assert TRACES.stat().st_size <= 150_000


MUTATIONS = [
    "an item is never needed",
    "the cache has no end",
    "the budget has no end",
    "nothing passed is given up",
    "a block does not know its items",
    "a victim has encoded all the same",
    "who is refused keeps what was there",
    "the newest is forgotten first",
]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_replay_would_notice(mutation, monkeypatch):
    from mini_vllm.core import encoder_cache_manager as cache
    from mini_vllm.core import kv_cache_utils
    from mini_vllm.core.sched import encoder_inputs, step_plan

    manager, step = cache.EncoderCacheManager, encoder_inputs.EncoderStep
    if mutation == "an item is never needed":
        monkeypatch.setattr(step, "clamp", lambda self, request, computed, new: new)
    elif mutation == "the cache has no end":
        monkeypatch.setattr(manager, "can_allocate", lambda self, request, i, budget, more: budget >= more)
        monkeypatch.setattr(manager, "__init__", _endless(manager.__init__))
    elif mutation == "the budget has no end":
        can = manager.can_allocate
        monkeypatch.setattr(
            manager, "can_allocate", lambda self, request, i, budget, more: can(self, request, i, 999, more)
        )
    elif mutation == "nothing passed is given up":
        monkeypatch.setattr(encoder_inputs.EncoderInputs, "free_passed", lambda self, request: None)
    elif mutation == "a block does not know its items":
        monkeypatch.setattr(kv_cache_utils, "gen_mm_extra_hash_keys", lambda features, start, end: ())
    elif mutation == "a victim has encoded all the same":
        monkeypatch.setattr(
            step, "take_back", lambda self, victim, running: self.scheduled.pop(victim.request_id, None)
        )
    elif mutation == "who is refused keeps what was there":
        monkeypatch.setattr(step_plan.StepPlan, "refuse", lambda self, request: False)
    else:
        popped = manager.free_encoder_input

        def first(self, request, input_id):
            popped(self, request, input_id)
            self.freeable = dict(reversed(self.freeable.items()))

        monkeypatch.setattr(manager, "free_encoder_input", first)
    assert notices(first_difference, range(40))


def _endless(make):
    return lambda self, cache_size: make(self, 10_000)


def test_a_request_whose_load_failed_lets_its_later_items_go():
    """In this workload of `fuzz_media.py --connector` one waited for itself, for ever; there in the release too."""
    replay, step = MediaConnectorReplay(make_media_connector_workload(192)), 0
    while step < len(replay.workload.arrivals) or replay.is_busy():
        replay.step(step)
        step += 1
        assert step < 400
