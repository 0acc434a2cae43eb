"""What the scheduler does for requests that have to obey a grammar.

Upstream twin: `vllm/v1/core/sched/scheduler.py`, where these lines stand in `get_grammar_bitmask` and in the middle of
`update_from_output`. Nobody enters this file who has no grammar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from mini_vllm.structured_output import StructuredOutputManager


class GrammarGate:
    """A part of `Scheduler`.

    structured_output_manager: None until the core has seen the first grammar.
    """

    structured_output_manager: StructuredOutputManager | None = None
    requests: dict[str, Request]
    prev_step_scheduled_req_ids: set[str]

    def _update_request_with_output(self, request: Request, new_token_ids: list[int]) -> tuple[list[int], bool]:
        raise NotImplementedError

    def get_grammar_bitmask(self, output: SchedulerOutput) -> GrammarOutput | None:
        """Which tokens may be sampled in this step, for the requests that have a grammar; None where there are none.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1259 — `Scheduler.get_grammar_bitmask`.
        """
        if self.structured_output_manager is None or not output.has_structured_output_requests:
            return None
        ids = [request_id for request_id in output.num_scheduled_tokens if self._obeys_grammar(request_id)]
        drafts = output.scheduled_spec_decode_tokens
        bitmask = self.structured_output_manager.grammar_bitmask(self.requests, ids, drafts)
        return None if bitmask is None else GrammarOutput(ids, bitmask)

    def _obeys_grammar(self, request_id: str) -> bool:
        request = self.requests.get(request_id)
        return request is not None and request.use_structured_output and not request.is_prefill_chunk

    def _accept_in_grammar(self, request: Request, new_token_ids: list[int]) -> tuple[list[int], bool]:
        """Let the grammar of a request go on by its new tokens; they, and whether the request ends. It may end with an
        error, and then without them, or, under `ignore_eos`, because its grammar has ended (upstream samples one token
        more and calls it an error). Forced tokens may join them.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1416 — "should_advance(request)".
        """
        manager = self.structured_output_manager
        assert manager is not None
        error = manager.accept_tokens(request, new_token_ids)
        if error is not None:  # its keys and values are those of its tokens, and may be found by others
            request.status, request.stop_reason = RequestStatus.FINISHED_ERROR, error
            return [], True
        if manager.jump_forward is not None and not request.is_finished():
            new_token_ids = new_token_ids + self._jump_forward(request)
        if not request.is_finished() and manager.is_terminated(request):
            request.status = RequestStatus.FINISHED_STOPPED
        return new_token_ids, request.is_finished()

    def _jump_forward(self, request: Request) -> list[int]:
        """Append what a request's grammar leaves no choice about: tokens that the next step computes with the last one
        that was sampled, in one chunk. The model runner has not sampled them, so the next plan names all tokens of the
        request, as for one that it has not seen for a step.

        Upstream has no jumps, see `structured_output/jump_forward.py`.
        """
        assert self.structured_output_manager is not None
        forced = self.structured_output_manager.forced_tokens(request)
        if forced:
            forced, _ = self._update_request_with_output(request, forced)
            self.prev_step_scheduled_req_ids.discard(request.request_id)
        return forced
