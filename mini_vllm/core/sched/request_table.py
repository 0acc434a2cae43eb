"""Which requests there are, and where: the table that a plan is made from.

An unfinished request is in `requests` and in exactly one of `waiting`, `skipped_waiting` and `running`. What comes from
outside (a new request, an abort, a reset) changes this table between two plans; the scheduler moves requests about
while it makes one.
Upstream twin: `vllm/v1/core/sched/scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.request_queue import RequestQueue, create_request_queue
from mini_vllm.engine import EngineCoreEventType
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from mini_vllm.core.sched.encoder_inputs import EncoderInputs
    from mini_vllm.core.sched.remote_kv import RemoteKV


class RequestTable:
    """All unfinished requests, and the queues that they stand in, which are changed in place: the scheduler has them.

    Args:
        scheduling_policy: order of `waiting`, "fcfs" or "priority".
        kv_cache_manager: has the blocks of those that run.
        connector: may keep the blocks of a request that has ended; until they are sent it stays in `requests`.
        encoder: knows which items the requests need. None: they have none.

    Attributes:
        requests: all unfinished requests by id.
        waiting: those without blocks, new or preempted.
        skipped_waiting: new ones that could not be admitted yet, whatever room there was: their grammar is compiled.
        running: those with blocks, in the order in which they are served.
        finished_req_ids: ended since the last plan; the next one tells the model runner.
    """

    def __init__(
        self, scheduling_policy: str, kv_cache_manager: KVCacheManager, connector: RemoteKV | None = None,
        encoder: EncoderInputs | None = None,
    ) -> None:  # fmt: skip
        self.kv_cache_manager, self.connector, self.encoder = kv_cache_manager, connector, encoder
        self.requests: dict[str, Request] = {}
        self.waiting: RequestQueue = create_request_queue(scheduling_policy)
        self.skipped_waiting: RequestQueue = create_request_queue(scheduling_policy)
        self.running: list[Request] = []
        self.finished_req_ids: set[str] = set()
        self.num_preemptions = 0

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: an unfinished request has the same id, or it can never fit the pool or the encoder's cache.
        """
        if request.request_id in self.requests:
            raise ValueError(f"request_id {request.request_id!r} belongs to an unfinished request")
        num_encoder_tokens = 0 if self.encoder is None else self.encoder.check_fits(request)
        most = request.sampling_params.max_tokens
        self.kv_cache_manager.check_fits(request.num_prompt_tokens, most, num_encoder_tokens)
        self.requests[request.request_id] = request
        request.record_event(EngineCoreEventType.QUEUED)
        blocked = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        (self.skipped_waiting if blocked else self.waiting).add_request(request)
        if self.connector is not None:
            self.connector.connector.on_new_request(request)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for room, or for more than that."""
        return len(self.waiting) + len(self.skipped_waiting)

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.skipped_waiting) + len(self.running)

    def finish_requests(self, request_ids: str | Iterable[str], finished_status: RequestStatus) -> list[str]:
        """End requests from outside (an abort); unknown ids are passed over. Returns the ids that were ended.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1779 — `Scheduler.finish_requests`.
        """
        ids = [request_ids] if isinstance(request_ids, str) else list(dict.fromkeys(request_ids))
        found = [self.requests[request_id] for request_id in ids if request_id in self.requests]
        requests = [request for request in found if not request.is_finished()]
        self.leave_queues(set(requests))
        for request in requests:
            is_loading = self.connector is not None and self.connector.stop_waiting(request)
            request.status = finished_status
            self.free_request(request, is_loading)
        return [request.request_id for request in requests]

    def leave_queues(self, gone: set[Request]) -> None:
        """Take requests out of the queues in which they stand."""
        num_before = len(self.running)
        self.running[:] = [request for request in self.running if request not in gone]
        if num_before - len(self.running) < len(gone):  # preempted while their last token was in flight, or never run
            self.waiting.remove_requests(gone)
            self.skipped_waiting.remove_requests(gone)

    def free_request(self, request: Request, delay_free_blocks: bool = False) -> dict[str, Any] | None:
        """Give the blocks of a request that has ended back and forget it; the model runner will be told. Where they are
        still loaded into or sent from, that is done later. What its output says to whoever goes on with it elsewhere.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1842 — `_free_request`.
        """
        kv_transfer_params = None
        if self.connector is not None:
            is_kept, kv_transfer_params = self.connector.request_finished(request)
            delay_free_blocks = delay_free_blocks or is_kept
        if self.encoder is not None:
            self.encoder.encoder_cache_manager.free(request)
        self.finished_req_ids.add(request.request_id)
        if not delay_free_blocks:
            self.forget(request)
        return kv_transfer_params

    def fail_request(self, request: Request, message: str) -> None:
        """A request's forward pass went wrong: it ends, and nobody may find what it wrote."""
        self.kv_cache_manager.evict_after(request, 0)
        request.status, request.stop_reason = RequestStatus.FINISHED_ERROR, message

    def forget(self, request: Request) -> None:
        """Nobody needs the blocks any more."""
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]

    def preempt_request(self, request: Request) -> None:
        """Take the request's blocks and put it back in the queue; its tokens are computed again later.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:929 — `_preempt_request`.
        """
        self.kv_cache_manager.free(request)
        if self.encoder is not None:
            self.encoder.encoder_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        request.num_preemptions += 1
        request.record_event(EngineCoreEventType.PREEMPTED)
        self.num_preemptions += 1
        self.waiting.prepend_request(request)

    def preempt_all(self) -> None:
        """Preempt all that run, the last one first, so that they come back in their order."""
        while self.running:
            request = self.running.pop()
            # A step in flight promises one token; with drafts, several, and then there is but one such step. The pinned
            # release drops as many steps as there are tokens.
            stale = min(request.num_output_placeholders, 1 if request.spec_token_ids else 1 << 62)
            self.preempt_request(request)
            request.async_tokens_to_discard += stale
            request.num_output_placeholders = 0

    def reset_prefix_cache(self, reset_running_requests: bool, reset_connector: bool) -> bool:
        """See `Scheduler.reset_prefix_cache`."""
        if reset_running_requests:
            self.preempt_all()
        is_done = self.kv_cache_manager.reset_prefix_cache()
        if self.connector is not None:
            return self.connector.after_reset(is_done, reset_running_requests, reset_connector)
        return is_done and not reset_connector
