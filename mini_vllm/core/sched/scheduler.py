"""Continuous batching: decides, step by step, which request computes how many tokens.

There is no prefill phase and no decode phase. Each request has `num_tokens` that exist and `num_computed_tokens` that
are in the KV cache; a step gives it some tokens to catch up with. A prompt is far behind, a decoding request is one
behind, a chunk of a prompt is a part of the way. Upstream twin: `vllm/v1/core/sched/scheduler.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.draft_gate import DraftGate
from mini_vllm.core.sched.grammar_gate import GrammarGate
from mini_vllm.core.sched.lora_gate import LoRAGate
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.request_queue import RequestQueue
from mini_vllm.core.sched.request_table import RequestTable
from mini_vllm.core.sched.step_plan import StepPlan
from mini_vllm.core.sched.utils import check_stop
from mini_vllm.distributed.kv_events import EventPublisher, KVEventBatch
from mini_vllm.engine import EngineCoreEventType, EngineCoreOutput
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus


class Scheduler(GrammarGate, DraftGate, LoRAGate, RequestTable):
    """Plans each step and takes in its results.

    Args:
        config: limits and policy.
        kv_cache_manager: gives the slots; may refuse.
        max_model_len: cap on the tokens of one request.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:64 — `Scheduler`.
    """

    def __init__(self, config: SchedulerConfig, kv_cache_manager: KVCacheManager, max_model_len: int) -> None:
        assert config.max_num_seqs is not None
        super().__init__(config.scheduling_policy, kv_cache_manager)
        self.config = config
        self.max_model_len = max_model_len
        self.max_num_running_reqs = config.max_num_seqs
        self.max_num_scheduled_tokens = config.max_num_batched_tokens
        self.check_stop: Callable[[Request, int], bool] = check_stop
        self.kv_event_publisher: EventPublisher | None = None

    def schedule(self) -> SchedulerOutput:
        """Plan one step, and count its tokens as computed.

        Running requests come first, so that decoding never waits for a new prompt; then waiting ones, from the
        front, as long as budget, seats and blocks last. In a step that had to preempt nobody new is admitted.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:329 — `Scheduler.schedule`.
        """
        step = StepPlan(self.max_num_scheduled_tokens)
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        output = step.make_output(self.finished_req_ids, self.prev_step_scheduled_req_ids)
        self.prev_step_scheduled_req_ids = set(output.num_scheduled_tokens)
        self.finished_req_ids = set()
        self._update_after_schedule(output)
        return output

    def _schedule_running(self, step: StepPlan) -> None:
        """First phase: those in `running`, in order. Where the pool refuses one of them, others are preempted for it.

        A request that lacks nothing is passed over. The phase ends when a request had to be preempted for itself.
        """
        index, running, drafting, last = 0, self.running, self.num_spec_tokens > 0, self.max_model_len - 1
        allocate_slots = self.kv_cache_manager.allocate_slots
        if self.num_lookahead_tokens:
            allocate_slots = partial(allocate_slots, num_lookahead_tokens=self.num_lookahead_tokens)
        while index < len(running) and step.token_budget > 0:
            request = running[index]
            missing = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
            if drafting:
                missing += len(request.spec_token_ids)
            num_new_tokens = self._clamp(missing, step.token_budget)
            num_new_tokens = min(num_new_tokens, last - request.num_computed_tokens)
            if num_new_tokens <= 0 or (request.num_output_placeholders and request.will_reach_max_tokens):
                index += 1
                continue
            while (new_blocks := allocate_slots(request, num_new_tokens)) is None:
                victim_index = self._preempt_one(step)
                # The pinned release leaves its index alone when the victim stands before the current request but had
                # nothing scheduled; the request that slides into the gap then misses its turn.
                if victim_index < index:
                    index -= 1
                if step.preempted[-1] is request:
                    return
            step.running.append(request)
            step.add(request, num_new_tokens, new_blocks)
            if drafting and request.spec_token_ids:
                self._schedule_drafts(step, request)
            index += 1

    def _schedule_waiting(self, step: StepPlan) -> None:
        """Second phase: admit while budget, seats and blocks last; who waits for a grammar or a slot is passed over."""
        passed_over: list[Request] = []
        if self.max_loras:
            self._note_running_loras(step)
        while step.token_budget > 0 and len(self.running) < self.max_num_running_reqs:
            queue = self._next_waiting_queue(passed_over)
            if queue is None or not self._admit(queue, step):
                break
        self._put_back(passed_over)

    def _admit(self, queue: RequestQueue, step: StepPlan) -> bool:
        """Admit the first of a queue; False where it does not fit, which ends the phase: nobody overtakes it.

        What the prefix cache holds is the request's head start.
        """
        request = queue.peek_request()
        hits, num_hit_tokens = self.kv_cache_manager.get_computed_blocks(request)
        num_new_tokens = request.num_tokens - num_hit_tokens
        if not self.config.enable_chunked_prefill and self._clamp(num_new_tokens) > step.token_budget:
            return False
        num_new_tokens = self._clamp(num_new_tokens, step.token_budget)
        new_blocks = self.kv_cache_manager.allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens=num_hit_tokens,
            new_computed_blocks=hits,
            full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
        )
        if new_blocks is None:
            return False
        queue.pop_request()
        self.running.append(request)
        if self.max_loras:
            self._take_lora_slot(request)
        (step.resumed if request.status == RequestStatus.PREEMPTED else step.new).append(request)
        step.add(request, num_new_tokens, self.kv_cache_manager.get_blocks(request.request_id))
        request.status = RequestStatus.RUNNING
        request.record_event(EngineCoreEventType.SCHEDULED)
        request.num_computed_tokens = num_hit_tokens
        if not request.output_token_ids:  # preempted before its first token: the last start counts
            request.num_cached_tokens = num_hit_tokens
        return True

    def _clamp(self, num_new_tokens: int, token_budget: int = 1 << 62) -> int:
        """Tokens for one request in this step: what it lacks, its own cap, and what is left of the budget."""
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < num_new_tokens:
            num_new_tokens = threshold
        return min(num_new_tokens, token_budget)

    def _preempt_one(self, step: StepPlan) -> int:
        """Preempt the request that the policy can best spare; returns the place it had in `running`."""
        if self.config.scheduling_policy == "priority":
            # Of equals the last: the pinned release takes the first, and two of them can preempt each other for ever.
            victim = max(reversed(self.running), key=lambda request: (request.priority, request.arrival_time))
            victim_index = self.running.index(victim)
            del self.running[victim_index]
            if victim.request_id in step.num_scheduled_tokens:
                step.remove(victim)
                # Its blocks of this step were made findable, and nobody will fill them.
                self.kv_cache_manager.evict_after(victim, victim.num_computed_tokens)
        else:
            victim = self.running.pop()
            victim_index = len(self.running)
        self._preempt_request(victim)
        step.preempted.append(victim)
        return victim_index

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        """Count the planned tokens as computed, now: the next plan need not wait for this one's results.

        Afterwards a request has caught up (`not is_prefill_chunk`) exactly when this step samples a token for it.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:951 — `_update_after_schedule`.
        """
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            request.num_computed_tokens += num_tokens
            request.is_prefill_chunk = (
                request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
            )
            if request.structured_output_request is not None and not request.is_prefill_chunk:
                output.has_structured_output_requests = True

    def update_from_output(self, output: SchedulerOutput, model_output: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Append the sampled tokens, end what has ended, and report what is new.

        It does not touch `num_computed_tokens`: `schedule()` did. Only rejected drafts are subtracted. A request that
        was aborted while the model ran is passed over. The order is that of the plan, whatever order the rows have: it
        decides in which order blocks are freed, and so which are reused first.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1283 — `Scheduler.update_from_output`.
        """
        outputs: list[EngineCoreOutput] = []
        stopped_running: set[Request] = set()
        stopped_waiting: set[Request] = set()  # preempted while their last token was in flight
        drafts, find = output.scheduled_spec_decode_tokens, self.requests.get
        rows = dict(zip(model_output.req_ids, range(len(model_output.req_ids)), strict=True))
        for request_id in output.num_scheduled_tokens:
            request = find(request_id)
            if request is None:
                continue
            status_before = request.status
            if request_id in model_output.errors:
                self._fail(request, model_output.errors[request_id])
                has_stopped, new_token_ids = True, []
            else:
                new_token_ids = model_output.sampled_token_ids[rows[request_id]]
                if drafts:
                    self._take_back_rejected(output, request, len(new_token_ids))
                if not new_token_ids:
                    continue
                new_token_ids, has_stopped = self._update_request_with_output(request, new_token_ids)
                if request.structured_output_request is not None and new_token_ids:
                    new_token_ids, has_stopped = self._accept_in_grammar(request, new_token_ids)
            prompt_logprobs = model_output.prompt_logprobs_dict.get(request_id)
            finish_reason = None
            if has_stopped:
                finish_reason = request.get_finished_reason()
                (stopped_running if status_before == RequestStatus.RUNNING else stopped_waiting).add(request)
                self._free_request(request)
            elif not new_token_ids and prompt_logprobs is None:
                continue
            logprobs = model_output.logprobs[rows[request_id]][: len(new_token_ids)] if model_output.logprobs else None
            outputs.append(EngineCoreOutput(
                request_id, new_token_ids, logprobs or None, finish_reason, request.stop_reason,
                request.num_cached_tokens, request.num_preemptions, request.take_events() if request.events else None,
                prompt_logprobs,
            ))  # fmt: skip
        if stopped_running:
            self.running = [request for request in self.running if request not in stopped_running]
        if stopped_waiting:
            self.waiting.remove_requests(stopped_waiting)
        if self.kv_event_publisher is not None:
            self._publish_events(self.kv_event_publisher)
        return outputs

    def _publish_events(self, publisher: EventPublisher) -> None:
        """Send what the prefix cache gained and lost in this step, if anything."""
        events = self.kv_cache_manager.take_events()
        if events:
            publisher.publish(KVEventBatch(time.time(), events))

    def _update_request_with_output(self, request: Request, new_token_ids: list[int]) -> tuple[list[int], bool]:
        """Append tokens one by one until one of them ends the request; the rest is dropped."""
        for count, token_id in enumerate(new_token_ids, 1):
            request.append_output_token_ids(token_id)
            if self.check_stop(request, self.max_model_len):
                return new_token_ids[:count], True
        return new_token_ids, False

    def _fail(self, request: Request, message: str) -> None:
        """End a request whose forward pass went wrong; nobody may find what it wrote."""
        self.kv_cache_manager.evict_after(request, 0)
        request.status = RequestStatus.FINISHED_ERROR
        request.stop_reason = message
