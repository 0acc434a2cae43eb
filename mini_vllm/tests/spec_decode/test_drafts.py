"""What becomes of a draft, one rule at a time: where it is planned, when it is forgotten, and that a rejected one is
out. The rules together are in `test_engine.py`, against the real scheduler in `core/sched/test_golden_drafts.py`."""

from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.sched.drafts import Drafts
from mini_vllm.outputs import DraftTokenIds
from mini_vllm.sample.ops.rejection_sample import sample_recovered_tokens


def make_drafts(**request):
    """What the scheduler holds for drafts, and a request "a" of five tokens, of which four are computed."""
    given = {
        "request_id": "a", "num_tokens": 5, "num_computed_tokens": 4, "num_output_placeholders": 0,
        "spec_token_ids": [], "is_prefill_chunk": False, "structured_output_request": None,
        "sampling_params": SimpleNamespace(ignore_eos=False), "is_finished": lambda: False, **request,
    }  # fmt: skip
    return Drafts(SpeculativeConfig(3, "ngram")), SimpleNamespace(**given)


@pytest.mark.parametrize(("tokens", "planned"), [(1, None), (2, [7]), (4, [7, 8, 9])])
def test_a_draft_is_planned_as_far_as_there_are_tokens_for_it_and_then_forgotten(tokens, planned):
    drafts, request = make_drafts(spec_token_ids=[7, 8, 9])
    step = SimpleNamespace(num_scheduled_tokens={"a": tokens}, spec_decode_tokens={})
    drafts.schedule(step, request)
    assert step.spec_decode_tokens == ({"a": planned} if planned else {})
    assert request.spec_token_ids == []


def test_what_a_grammar_forbids_is_no_draft():
    drafts, request = make_drafts(structured_output_request=SimpleNamespace(grammar=object()))
    drafts.structured_output_manager = SimpleNamespace(
        should_advance=lambda request: True, legal_drafts=lambda request, tokens: tokens[:1], backend=object()
    )
    drafts.update_draft_token_ids({"a": request}, DraftTokenIds(["a", "gone"], [[7, 8], [9]]))
    assert request.spec_token_ids == [7]


def test_a_certain_draft_that_was_rejected_does_not_come_back():
    p, stream = np.array([[0.9, 0.1]]), np.random.default_rng(0)
    drawn = [sample_recovered_tokens(np.array([0]), np.array([0]), np.array([0]), None, p, [stream]) for _ in range(50)]
    assert {int(token[0]) for token in drawn} == {1}
    assert p.tolist() == [[0.9, 0.1]]
