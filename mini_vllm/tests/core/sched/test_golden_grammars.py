"""With grammars the scheduler decides as the real one of vLLM 0.22.1: who waits for a grammar and who passes by, which
rows of bits there are and what they allow, whose sampling is deferred, who thinks, which drafts are forbidden; chunked,
preempted, cached, aborted, reset, by priority, ahead of the results."""

import pytest

from mini_vllm.tests.golden.grammar_workload import make_grammar_workload
from mini_vllm.tests.golden.replay import GrammarReplay
from mini_vllm.tests.golden.replay_compare import assert_no_difference, first_parting, in_parts, notices, recording
from mini_vllm.tests.helpers import GOLDEN

TRACES = GOLDEN / "scheduler-grammars.json.xz"
PARTS = 30
pytestmark = pytest.mark.usefixtures("same_start_of_all_hashes")


def golden():
    return recording(TRACES.name)


def first_difference(seed):
    """None, or the first step at which the two schedulers part, and a description of it."""
    return first_parting(GrammarReplay(make_grammar_workload(seed)), golden()["traces"][seed])


@in_parts(PARTS, fast=2)
def test_every_decision_equals_real_vllm(part):
    assert_no_difference(first_difference, range(part, len(golden()["traces"]), PARTS))


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    seen = provenance["seen"]
    assert provenance["vllm"].startswith("0.22.1") and provenance["workloads"] >= 60
    assert provenance["steps"] >= 8_000 and provenance["steps_with_preemption"] >= 300
    assert seen["steps in which one waits for its grammar and others run"] >= 3_000
    assert seen["steps whose sampling was deferred"] >= 1_000 and seen["rows of requests with drafts"] >= 4_000
    assert {"obeyed, and ended: stop", "obeyed, and ended: length", "obeyed, and ended: error"} <= seen.keys()
    assert min(provenance["workloads_by_feature"].values()) >= 10, provenance["workloads_by_feature"]
    assert TRACES.stat().st_size <= 300_000


MUTATIONS = (
    "nobody passes by",
    "a row in the middle of a prompt",
    "the grammar stays behind",
    "drafts are not rolled back",
    "sampling is not deferred",
    "thinking is never over",
)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_replay_would_notice(mutation, monkeypatch):
    from mini_vllm.core.sched import scheduler
    from mini_vllm.core.sched.async_scheduler import AsyncScheduler
    from mini_vllm.structured_output import StructuredOutputManager
    from mini_vllm.structured_output.backend_mini import MiniGrammar

    if mutation == "nobody passes by":
        original = scheduler.select_waiting_queue

        def select_waiting_queue(waiting, skipped):
            first = original(waiting, skipped)
            return first if first and first.peek_request().try_promote() else type(waiting)()

        monkeypatch.setattr(scheduler, "select_waiting_queue", select_waiting_queue)
    elif mutation == "a row in the middle of a prompt":
        monkeypatch.setattr(
            StructuredOutputManager, "_fills_row", lambda self, request: bool(request) and request.use_structured_output
        )
    elif mutation == "the grammar stays behind":
        monkeypatch.setattr(StructuredOutputManager, "should_advance", lambda self, request: False)
    elif mutation == "drafts are not rolled back":
        monkeypatch.setattr(MiniGrammar, "rollback", lambda self, count: None)
    elif mutation == "sampling is not deferred":
        plain = AsyncScheduler._update_after_schedule

        def update_after_schedule(self, output):
            plain(self, output)
            output.pending_structured_output_tokens = False

        monkeypatch.setattr(AsyncScheduler, "_update_after_schedule", update_after_schedule)
    else:
        monkeypatch.setattr(StructuredOutputManager, "should_fill_bitmask", lambda self, request: True)

    assert notices(first_difference, range(40))
