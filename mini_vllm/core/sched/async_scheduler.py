"""Scheduling one step ahead of the results. Upstream twin: `vllm/v1/core/sched/async_scheduler.py`.

A step whose result is not there yet has still promised a token to each request that it brings up to date. The promise
is a placeholder: it counts as a token to be computed, so that the next step can be planned for it, though nobody knows
its id. The model runner knows, because it sampled it. With drafts the promise is one token and all drafts of the step,
and the drafts of the next step are placeholders too: the runner puts in those that it has made.
"""

from __future__ import annotations

from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.request import Request, RequestStatus


class AsyncScheduler(Scheduler):
    """A `Scheduler` that is asked for step n + 1 before `update_from_output` of step n.

    Upstream: upstream/vllm/v1/core/sched/async_scheduler.py:12 — `AsyncScheduler`.
    """

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        """Promise a token to every request that this step brings up to date."""
        super()._update_after_schedule(output)
        drafts = output.scheduled_spec_decode_tokens
        placeholders = [] if self.drafts is None else [-1] * self.drafts.num_spec_tokens
        for request_id in output.num_scheduled_tokens:
            request = self.requests[request_id]
            if not request.is_prefill_chunk:
                if request.structured_output_request is not None and request.num_output_placeholders > 0:
                    output.pending_structured_output_tokens = True
                request.num_output_placeholders += 1 + len(drafts.get(request_id, ())) if drafts else 1
                if placeholders:
                    request.spec_token_ids = placeholders.copy()

    def _update_request_with_output(self, request: Request, new_token_ids: list[int]) -> tuple[list[int], bool]:
        """Put tokens in the place of their placeholders; only now can a block they fill be found by others.

        Upstream: upstream/vllm/v1/core/sched/async_scheduler.py:37 — `_update_request_with_output`.
        """
        if request.async_tokens_to_discard > 0:
            request.async_tokens_to_discard -= 1
            return [], False
        was_running = request.status == RequestStatus.RUNNING
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids)
        request.num_output_placeholders -= len(new_token_ids)
        if was_running:
            known = request.num_computed_tokens - request.num_output_placeholders
            self.kv_cache_manager.cache_blocks(request, known)
        return new_token_ids, stopped
