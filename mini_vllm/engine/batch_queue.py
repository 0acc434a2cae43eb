"""Several steps in flight: plans are made and sent to the model before the results of those before them are there.

    schedule -> execute -> sample -> queue        as long as the queue has room
                 queue -> oldest result -> update_from_output

Two are in flight where scheduling runs ahead (`async_scheduling`), one for each stage of a pipeline: while one stage
computes step n, the one before it computes n + 1. A request in flight lacks nothing, so that the scheduler passes it
over and another batch is planned meanwhile; where scheduling runs ahead it lacks the tokens that were promised.

Upstream twin: `vllm/v1/engine/core.py`, where these lines stand in `EngineCore`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.engine import EngineCoreOutput
from mini_vllm.executor.pending_output import PendingOutput
from mini_vllm.outputs import DraftTokenIds
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from mini_vllm.engine.core import EngineCore


@dataclass(slots=True)
class Batch:
    """A plan in flight. `due`: requests that get a token, asked for where there are stages. `forgotten`: requests of it
    that were ended meanwhile; what comes for them is dropped."""

    scheduler_output: SchedulerOutput
    output: PendingOutput
    due: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)


class BatchQueue:
    """The core's steps where more than one is in flight. Its length is how many are.

    Args:
        core: plans, runs and takes in.
        size: steps in flight at most; `max_concurrent_batches` of the executor.

    Upstream: upstream/vllm/v1/engine/core.py:197 — "self.batch_queue = deque(maxlen=self.batch_queue_size)".
    """

    def __init__(self, core: EngineCore, size: int) -> None:
        self.core, self.size = core, size
        config = core.config
        self.has_stages = config.pipeline_parallel_size > 1
        self.sends_back = self.has_stages and not config.async_scheduling
        self.takes_drafts = config.speculative_config is not None and not config.async_scheduling
        self.drops_waste = not self.has_stages
        self.batches: deque[Batch] = deque()

    def __len__(self) -> int:
        return len(self.batches)

    def step_with_batch_queue(self) -> list[EngineCoreOutput]:
        """Plan a step and send it off; where the queue is then full, or nothing was planned, or the oldest result is
        there already, take that in. Returns what is new, request by request.

        An end that only the token itself can tell (EOS, a stop id) is noticed late where scheduling runs ahead; what
        was computed for the request since is dropped. In this process the model runs in the calling thread, so that
        only the order of decisions is upstream's. Where a grammar waits for a token in flight, the forward pass still
        comes first, and sampling is deferred.

        Upstream: upstream/vllm/v1/engine/core.py:469 — `EngineCore.step_with_batch_queue`. There one result is taken in
        before deferred sampling, however many are in flight.
        """
        core, deferred = self.core, None
        due: set[str] = set()
        if core.has_requests():
            if self.has_stages:
                self._hold_back()
            plan = core.scheduler.schedule()
            if self.has_stages:
                due = self._due(plan)
            core.execute(plan)
            if plan.pending_structured_output_tokens:
                deferred = plan
            else:
                self.batches.appendleft(Batch(plan, core.sample(plan, non_block=True), due))
            core.watch_progress(plan, len(self.batches) > 1)
            room = deferred is None and len(self.batches) < self.size and not self.batches[-1].output.done()
            if plan.total_num_scheduled_tokens and room:
                return []
        outputs = self._take_in() if self.batches else []
        if deferred is not None:
            while self.batches:
                outputs += self._take_in()
            if core.config.speculative_config is not None:
                drafts = core.model_executor.take_draft_token_ids()
                core.scheduler.update_draft_token_ids_in_output(drafts, deferred)
            self.batches.appendleft(Batch(deferred, core.sample(deferred, non_block=True), due))
        if self.drops_waste and not core.scheduler.has_unfinished_requests() and core.scheduler.connector is None:
            self.batches.clear()  # only wasted steps are left in flight
        return outputs

    def _hold_back(self) -> None:
        """Who was preempted while a token for it was in flight is not admitted before that is there.

        Upstream admits it, and then takes the same token from two steps. It can happen there with three steps in
        flight, and with two after a reset of the prefix cache.
        """
        scheduler, is_async = self.core.scheduler, self.core.config.async_scheduling
        due = set().union(*(batch.due - batch.forgotten for batch in self.batches))
        for request in (*scheduler.waiting, *scheduler.skipped_waiting):
            owed = request.num_output_placeholders > 0 if is_async else request.status == RequestStatus.PREEMPTED
            request.awaits_result = owed and request.request_id in due

    def _due(self, plan: SchedulerOutput) -> set[str]:
        """Whom a plan brings a token; and the stages that do not sample are told of those that were sampled."""
        requests = self.core.scheduler.requests
        if self.sends_back:
            send_back(plan, requests)
        return {name for name in plan.num_scheduled_tokens if not requests[name].is_prefill_chunk}

    def _take_in(self) -> list[EngineCoreOutput]:
        """The oldest result. It stays in the queue as long as it is waited for, whatever interrupts that."""
        core, batch = self.core, self.batches[-1]
        plan = batch.scheduler_output
        try:
            output = batch.output.result()
        except Exception:
            self.batches.pop()
            core.drop_step(plan)
            raise
        self.batches.pop()
        for row, request_id in enumerate(output.req_ids) if batch.forgotten else ():
            if request_id in batch.forgotten:
                output.sampled_token_ids[row] = []
                output.errors.pop(request_id, None)
        outputs = core.scheduler.update_from_output(plan, output)
        if self.takes_drafts and plan.total_num_scheduled_tokens:
            self._take_drafts()
        return outputs

    def _take_drafts(self) -> None:
        """Drafts of the step just taken in, for those of its requests that run and have nothing in flight.

        Upstream asks for them when a step has been sent: upstream/vllm/v1/engine/core.py:459 — `post_step`. The next
        plan then has drafts of a request, and not the token that they come after.
        """
        scheduler, wanted = self.core.scheduler, DraftTokenIds([], [])
        drafts = self.core.model_executor.take_draft_token_ids()
        for request_id, token_ids in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            request = scheduler.requests.get(request_id)
            if request is None or request.status != RequestStatus.RUNNING:
                continue
            if request.num_computed_tokens < request.num_tokens:
                wanted.req_ids.append(request_id)
                wanted.draft_token_ids.append(token_ids)
        scheduler.update_draft_token_ids(wanted)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Requests were ended: what is in flight for them is nothing to a later request of the same id."""
        for batch in self.batches:
            batch.forgotten.update(batch.scheduler_output.num_scheduled_tokens.keys() & set(request_ids))


def send_back(plan: SchedulerOutput, requests: dict[str, Request]) -> None:
    """Tell the stages that do not sample which tokens were sampled: of each request that they know, those that exist
    among the tokens of this step.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:1059 — "if self.use_pp and not".
    """
    cached, drafts = plan.scheduled_cached_reqs, plan.scheduled_spec_decode_tokens
    for request_id, first in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        last = first + plan.num_scheduled_tokens[request_id] - len(drafts.get(request_id, ()))
        cached.new_token_ids.append(requests[request_id].all_token_ids[first:last])
