"""What becomes of a draft, one rule at a time: where it is planned, when it is forgotten, and that a rejected one is
out. The rules together are in `test_engine.py`, against the real scheduler in `core/sched/test_golden_drafts.py`."""

from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm.core.sched.draft_gate import DraftGate
from mini_vllm.outputs import DraftTokenIds
from mini_vllm.sample.ops.rejection_sample import sample_recovered_tokens


def make_gate(**request):
    """A gate with one request "a" of five tokens, of which four are computed."""
    given = {
        "request_id": "a", "num_tokens": 5, "num_computed_tokens": 4, "num_output_placeholders": 0,
        "spec_token_ids": [], "is_prefill_chunk": False, "structured_output_request": None,
        "sampling_params": SimpleNamespace(ignore_eos=False), **request,
    }  # fmt: skip
    gate = DraftGate()
    gate.requests, gate.structured_output_manager = {"a": SimpleNamespace(**given)}, None
    return gate, gate.requests["a"]


@pytest.mark.parametrize(("tokens", "planned"), [(1, None), (2, [7]), (4, [7, 8, 9])])
def test_a_draft_is_planned_as_far_as_there_are_tokens_for_it_and_then_forgotten(tokens, planned):
    gate, request = make_gate(spec_token_ids=[7, 8, 9])
    step = SimpleNamespace(num_scheduled_tokens={"a": tokens}, spec_decode_tokens={})
    gate._schedule_drafts(step, request)
    assert step.spec_decode_tokens == ({"a": planned} if planned else {})
    assert request.spec_token_ids == []


def test_what_a_grammar_forbids_is_no_draft():
    grammar = SimpleNamespace(is_terminated=lambda: False, validate_tokens=lambda tokens: tokens[:1])
    gate, request = make_gate(structured_output_request=SimpleNamespace(grammar=grammar))
    gate.structured_output_manager = SimpleNamespace(should_advance=lambda request: True, backend=object())
    gate.update_draft_token_ids(DraftTokenIds(["a", "gone"], [[7, 8], [9]]))
    assert request.spec_token_ids == [7]


def test_a_certain_draft_that_was_rejected_does_not_come_back():
    p, stream = np.array([[0.9, 0.1]]), np.random.default_rng(0)
    drawn = [sample_recovered_tokens(np.array([0]), np.array([0]), np.array([0]), None, p, [stream]) for _ in range(50)]
    assert {int(token[0]) for token in drawn} == {1}
    assert p.tolist() == [[0.9, 0.1]]
