"""What the scheduler does for drafts: schedule them, take back what was rejected, take new ones in.

A draft is a token that may turn out to be the next one. It is computed like a token that exists, so it needs budget and
slots; it is no token of the request, so nothing of it is hashed, and a preemption forgets it. `schedule()` has counted
all of them as computed. When the results are there, the rejected ones are subtracted again, and that is the whole way
back: no block is given back, and the slots are written anew.

Upstream twin: `vllm/v1/core/sched/scheduler.py`, where these lines stand in `schedule` and `update_from_output`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.step_plan import StepPlan
from mini_vllm.outputs import DraftTokenIds
from mini_vllm.request import Request
from mini_vllm.spec_decode.metrics import SpecDecodingStats

if TYPE_CHECKING:
    from mini_vllm.structured_output import StructuredOutputManager


class Drafts:
    """What the scheduler holds where drafts are expected.

    Args:
        config: how many drafts, and what their maker needs.
        structured_output_manager: forbids drafts that break a grammar; None: there are no grammars.

    Attributes:
        num_spec_tokens: drafts of a request in a step, at most.
        num_lookahead_tokens: slots for the drafter's own keys and values.
        spec_decoding_stats: counts since the scheduler was made.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:213 — "self.num_spec_tokens = self.num_lookahead_tokens".
    """

    def __init__(
        self, config: SpeculativeConfig, structured_output_manager: StructuredOutputManager | None = None
    ) -> None:
        self.structured_output_manager = structured_output_manager
        self.num_spec_tokens, self.num_lookahead_tokens = config.num_speculative_tokens, config.num_lookahead_tokens
        self.max_num_new_slots_for_drafting = config.max_num_new_slots_for_drafting
        self.spec_decoding_stats = SpecDecodingStats.new(self.num_spec_tokens)

    def token_budget(self, config: SchedulerConfig) -> int:
        """Tokens of a step: a pass of a draft model has one more for each request, and the budget is for both.

        Raises:
            ValueError: it has no room for them.

        Upstream: upstream/vllm/config/vllm.py:1547 — `VllmConfig._set_max_num_scheduled_tokens`.
        """
        assert config.max_num_seqs is not None
        new_slots = self.max_num_new_slots_for_drafting * config.max_num_seqs
        if config.max_num_batched_tokens <= new_slots:
            raise ValueError(
                f"max_num_batched_tokens={config.max_num_batched_tokens} must be more than max_num_seqs="
                f"{config.max_num_seqs}: a pass of the draft model has one token more for each request"
            )
        return config.max_num_batched_tokens - new_slots

    def schedule(self, step: StepPlan, request: Request) -> None:
        """Note which drafts the tokens just given to a running request hold: the first of them, where not all fit.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:501 — "Speculative decode related.".
        """
        num_tokens = step.num_scheduled_tokens[request.request_id]
        count = num_tokens + request.num_computed_tokens - request.num_tokens - request.num_output_placeholders
        if count > 0:
            step.spec_decode_tokens[request.request_id] = request.spec_token_ids[:count]
        request.spec_token_ids = []

    def take_back_rejected(self, output: SchedulerOutput, request: Request, num_generated: int) -> None:
        """Uncount the drafts that were not accepted: `num_generated` tokens are the accepted ones and one of the
        model's own.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1372 — "num_draft_tokens = len(scheduled_spec_token_ids)".
        It does so for a frame that is to be discarded as well (a reset of the prefix cache while it was in flight),
        and then subtracts from what the request has computed since.
        """
        drafts = output.scheduled_spec_decode_tokens.get(request.request_id)
        if not drafts or not num_generated or request.async_tokens_to_discard:
            return
        num_accepted = num_generated - 1
        num_rejected = len(drafts) - num_accepted
        if request.num_computed_tokens > 0:  # 0: it was preempted while the step was in flight
            request.num_computed_tokens -= num_rejected
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_rejected
        num_invalid = output.num_invalid_spec_tokens.get(request.request_id, 0)
        self.spec_decoding_stats.observe_draft(len(drafts) - num_invalid, num_accepted)

    def update_draft_token_ids(self, requests: dict[str, Request], draft_token_ids: DraftTokenIds) -> None:
        """Take in the drafts for the next step. Of those that a grammar forbids nothing is kept, and a request whose
        prompt is not through has none.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1691 — `Scheduler.update_draft_token_ids`.
        """
        for request_id, token_ids in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True):
            request = requests.get(request_id)
            if request is not None and not request.is_finished():
                request.spec_token_ids = [] if request.is_prefill_chunk else self._legal_drafts(request, token_ids)

    def update_draft_token_ids_in_output(
        self, requests: dict[str, Request], draft_token_ids: DraftTokenIds, output: SchedulerOutput
    ) -> None:
        """Put drafts in the place of the placeholders of a step whose sampling was deferred; -1 where a grammar
        forbids them.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1713 — `Scheduler.update_draft_token_ids_in_output`.
        """
        for request_id, token_ids in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True):
            request = requests.get(request_id)
            num_scheduled = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
            if request is None or request.is_finished() or not num_scheduled:
                continue
            legal = self._legal_drafts(request, token_ids[:num_scheduled])
            if num_invalid := num_scheduled - len(legal):
                output.num_invalid_spec_tokens[request_id] = num_invalid
            output.scheduled_spec_decode_tokens[request_id] = legal + [-1] * num_invalid

    def _legal_drafts(self, request: Request, token_ids: list[int]) -> list[int]:
        """The drafts up to the first that the request's grammar forbids, or before the one that ends its thinking; all
        of them where it has no grammar. The end of sequence is no draft under `ignore_eos`: what came after it would be
        outside the grammar."""
        manager, state = self.structured_output_manager, request.structured_output_request
        if manager is None or state is None:
            return token_ids
        if not manager.should_advance(request):
            return manager.drafts_of_thinking(request, token_ids)
        assert manager.backend is not None
        legal = manager.legal_drafts(request, token_ids)
        if request.sampling_params.ignore_eos:
            stops = manager.backend.vocabulary.stop_token_ids
            legal = legal[: next((i for i, token in enumerate(legal) if token in stops), len(legal))]
        return legal
