"""Which requests there are, and where: the table that a plan is made from.

An unfinished request is in `requests` and in exactly one of `waiting`, `skipped_waiting` and `running`. What comes from
outside (a new request, an abort, a reset) changes this table between two plans; the scheduler moves requests about
while it makes one.
Upstream twin: `vllm/v1/core/sched/scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.request_queue import RequestQueue, create_request_queue
from mini_vllm.engine import EngineCoreEventType
from mini_vllm.request import Request, RequestStatus


class RequestTable:
    """All unfinished requests, and the queues that they stand in.

    Args:
        scheduling_policy: order of `waiting`, "fcfs" or "priority".
        kv_cache_manager: has the blocks of those that run.

    Attributes:
        requests: all unfinished requests by id.
        waiting: those without blocks, new or preempted.
        skipped_waiting: new ones that could not be admitted yet, whatever room there was: their grammar is compiled.
        running: those with blocks, in the order in which they are served.
        finished_req_ids: ended since the last plan; the next one tells the model runner.
    """

    max_loras = 0

    def __init__(self, scheduling_policy: str, kv_cache_manager: KVCacheManager) -> None:
        self.scheduling_policy = scheduling_policy
        self.kv_cache_manager = kv_cache_manager
        self.requests: dict[str, Request] = {}
        self.waiting: RequestQueue = create_request_queue(scheduling_policy)
        self.skipped_waiting: RequestQueue = create_request_queue(scheduling_policy)
        self.running: list[Request] = []
        self.finished_req_ids: set[str] = set()
        self.prev_step_scheduled_req_ids: set[str] = set()
        self.num_preemptions = 0

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: an unfinished request has the same id, or this one can never fit the pool.
        """
        if request.request_id in self.requests:
            raise ValueError(f"request_id {request.request_id!r} belongs to an unfinished request")
        self.kv_cache_manager.check_fits(request.num_prompt_tokens, request.sampling_params.max_tokens)
        self.requests[request.request_id] = request
        request.record_event(EngineCoreEventType.QUEUED)
        blocked = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        (self.skipped_waiting if blocked else self.waiting).add_request(request)

    @property
    def num_waiting_reqs(self) -> int:
        """Requests without blocks."""
        return len(self.waiting) + len(self.skipped_waiting)

    def _next_waiting_queue(self, passed_over: list[Request]) -> RequestQueue | None:
        """The queue whose first request can be admitted now, None where there is none.

        Those that still wait for something are taken out and added to `passed_over`; whoever calls puts them back.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1619 — `_select_waiting_queue_for_scheduling`.
        """
        while True:
            queue = self.skipped_waiting if self.skipped_waiting else self.waiting
            if self.scheduling_policy == "priority" and self.waiting and self.skipped_waiting:
                first, skipped = self.waiting.peek_request(), self.skipped_waiting.peek_request()
                queue = self.waiting if first < skipped else self.skipped_waiting
            if not queue:
                return None
            request = queue.peek_request()
            ready = self._try_promote_blocked_waiting_request(request)
            if ready and (not self.max_loras or self._has_lora_slot(request)):
                return queue
            passed_over.append(queue.pop_request())

    def _try_promote_blocked_waiting_request(self, request: Request) -> bool:
        """True where the request waits for nothing but room. A grammar that cannot be compiled has no more to wait
        for: the request is admitted, and ends with the error of its grammar when its prompt is computed.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:2103 — `_try_promote_blocked_waiting_request`.
        """
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            assert request.structured_output_request is not None
            if not request.structured_output_request.is_grammar_ready:
                return False
            request.status = RequestStatus.WAITING
        return True

    def _has_lora_slot(self, request: Request) -> bool:
        raise NotImplementedError

    def promote_ready(self) -> None:
        """Move those whose grammar is ready to the front of `waiting`: for a scheduler that knows this queue alone."""
        passed_over: list[Request] = []
        while len(self.skipped_waiting):
            request = self.skipped_waiting.pop_request()
            ready = self._try_promote_blocked_waiting_request(request)
            (self.waiting.prepend_request if ready else passed_over.append)(request)
        self._put_back(passed_over)

    def _put_back(self, passed_over: list[Request]) -> None:
        for request in reversed(passed_over):
            self.skipped_waiting.prepend_request(request)

    def finish_requests(self, request_ids: str | Iterable[str], finished_status: RequestStatus) -> list[str]:
        """End requests from outside (an abort); unknown ids are passed over. Returns the ids that were ended.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1779 — `Scheduler.finish_requests`.
        """
        ids = [request_ids] if isinstance(request_ids, str) else list(dict.fromkeys(request_ids))
        requests = [self.requests[request_id] for request_id in ids if request_id in self.requests]
        gone = set(requests)
        if any(request.status == RequestStatus.RUNNING for request in requests):
            self.running = [request for request in self.running if request not in gone]
        if any(request.status != RequestStatus.RUNNING for request in requests):
            self.waiting.remove_requests(gone)
            self.skipped_waiting.remove_requests(gone)
        for request in requests:
            request.status = finished_status
            self._free_request(request)
        return [request.request_id for request in requests]

    def _free_request(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        self.finished_req_ids.add(request.request_id)
        del self.requests[request.request_id]

    def has_unfinished_requests(self) -> bool:
        """True while a request waits or runs."""
        return bool(self.requests)

    def has_finished_requests(self) -> bool:
        """True while the model runner has not been told of a request that ended."""
        return bool(self.finished_req_ids)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached contents; False, and nothing done, while requests hold blocks.

        With `reset_running_requests` the running ones are preempted first, last one first, so that they come back in
        their order.
        """
        if reset_running_requests:
            while self.running:
                request = self.running.pop()
                self._preempt_request(request)
                # One step is in flight. With drafts it promises several tokens; the pinned release drops so many steps.
                request.async_tokens_to_discard = min(request.num_output_placeholders, 1)
                request.num_output_placeholders = 0
            self.prev_step_scheduled_req_ids = set()
        return self.kv_cache_manager.reset_prefix_cache()

    def _preempt_request(self, request: Request) -> None:
        """Take the request's blocks and put it back in the queue; its tokens are computed again later.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:929 — `_preempt_request`.
        """
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        request.num_preemptions += 1
        request.record_event(EngineCoreEventType.PREEMPTED)
        self.num_preemptions += 1
        self.waiting.prepend_request(request)
