"""Continuous batching: decides, step by step, which request computes how many tokens.

There is no prefill phase and no decode phase. Each request has `num_tokens` that exist and `num_computed_tokens` that
are in the KV cache; a step gives it some tokens to catch up with. A prompt is far behind, a decoding request is one
behind, a chunk of a prompt is a part of the way. Upstream twin: `vllm/v1/core/sched/scheduler.py`.
What one feature needs is an object that the scheduler holds, None where nobody uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.core.kv_cache_event_writer import publish_events
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.core.sched.request_queue import RequestQueue, choose_victim, select_waiting_queue
from mini_vllm.core.sched.request_table import RequestTable
from mini_vllm.core.sched.step_plan import StepPlan
from mini_vllm.core.sched.utils import check_stop
from mini_vllm.engine import EngineCoreOutput
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from mini_vllm.core.sched.drafts import Drafts
    from mini_vllm.core.sched.encoder_inputs import EncoderInputs
    from mini_vllm.core.sched.lora_slots import LoRASlots
    from mini_vllm.core.sched.mamba_split import MambaBlockAlignedSplit
    from mini_vllm.core.sched.remote_kv import RemoteKV
    from mini_vllm.distributed.kv_events import EventPublisher
    from mini_vllm.structured_output import StructuredOutputManager


class Scheduler:
    """Plans each step and takes in its results.

    Args:
        config: limits and policy. kv_cache_manager: gives the slots; may refuse. max_model_len: tokens of one request.
        structured_output_manager: grammars. drafts: speculation. lora: slots for adapters. connector: keys and values
            from elsewhere. encoder: budget and cache for media. mamba_split: lets steps of a prompt end with blocks.
            kv_event_publisher: tells what the prefix cache gains and loses. check_stop: whether a token was the last.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:64 — `Scheduler`, `:329` — `schedule`, `:951` —
    `_update_after_schedule`, `:1259` — `get_grammar_bitmask`, `:1283` — `update_from_output`, `:1691` —
    `update_draft_token_ids`.
    """

    def __init__(
        self, config: SchedulerConfig, kv_cache_manager: KVCacheManager, max_model_len: int, *,
        structured_output_manager: StructuredOutputManager | None = None, drafts: Drafts | None = None,
        lora: LoRASlots | None = None, connector: RemoteKV | None = None, encoder: EncoderInputs | None = None,
        mamba_split: MambaBlockAlignedSplit | None = None, kv_event_publisher: EventPublisher | None = None,
        check_stop: Callable[[Request, int], bool] = check_stop,
    ) -> None:  # fmt: skip
        assert config.max_num_seqs is not None
        self.config, self.kv_cache_manager, self.max_model_len = config, kv_cache_manager, max_model_len
        self.structured_output_manager, self.drafts, self.lora = structured_output_manager, drafts, lora
        self.connector, self.kv_event_publisher, self.check_stop = connector, kv_event_publisher, check_stop
        self.encoder, self.encoder_cache_manager = encoder, None if encoder is None else encoder.encoder_cache_manager
        self.max_num_running_reqs, self.mamba_split = config.max_num_seqs, mamba_split
        self.max_num_scheduled_tokens = config.max_num_batched_tokens if drafts is None else drafts.token_budget(config)
        self.prev_step_scheduled_req_ids: set[str] = set()
        self.table = table = RequestTable(config.scheduling_policy, kv_cache_manager, connector, encoder)
        # Its parts under upstream's names: the same objects, changed in place and never replaced.
        self.requests, self.waiting, self.skipped_waiting = table.requests, table.waiting, table.skipped_waiting
        self.running, self.finished_req_ids = table.running, table.finished_req_ids

    def schedule(self) -> SchedulerOutput:
        """Plan one step, and count its tokens as computed.

        Running requests come first, so that decoding never waits for a new prompt; then waiting ones, from the
        front, as long as budget, seats and blocks last. In a step that had to preempt nobody new is admitted.
        """
        self.kv_cache_manager.new_step_starts()
        encoder = None if self.encoder is None else self.encoder.begin_step()
        threshold = self.config.long_prefill_token_threshold
        step = StepPlan(self.max_num_scheduled_tokens, threshold, self.mamba_split, encoder)
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        output = step.make_output(set(self.finished_req_ids), self.prev_step_scheduled_req_ids)
        self.prev_step_scheduled_req_ids = set(output.num_scheduled_tokens)
        self.finished_req_ids.clear()
        if self.connector is not None:
            self.connector.plan(output)
        self._update_after_schedule(output)
        return output

    def _schedule_running(self, step: StepPlan) -> None:
        """First phase: those in `running`, in order. Where the pool refuses one of them, others are preempted for it.

        A request that lacks nothing is passed over. The phase ends when a request had to be preempted for itself.
        """
        index, running, drafts, last = 0, self.running, self.drafts, self.max_model_len - 1
        allocate_slots = self.kv_cache_manager.allocate_slots
        if drafts is not None:
            allocate_slots = partial(allocate_slots, num_lookahead_tokens=drafts.num_lookahead_tokens)
        while index < len(running) and step.token_budget > 0:
            request = running[index]
            computed = request.num_computed_tokens
            missing = request.num_tokens_with_spec + request.num_output_placeholders - computed
            num_new_tokens = step.clamp(request, computed, min(missing, last - computed))
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
            if drafts is not None and request.spec_token_ids:
                drafts.schedule(step, request)
            index += 1

    def _schedule_waiting(self, step: StepPlan) -> None:
        """Second phase: admit while budget, seats and blocks last; who waits for more than that is passed over."""
        passed_over: list[Request] = []
        admit = self._admit if self.connector is None else partial(self.connector.admit, self, passed_over)
        if self.lora is not None:
            self.lora.note_running(step)
        while step.token_budget > 0 and len(self.running) < self.max_num_running_reqs:
            queue = select_waiting_queue(self.waiting, self.skipped_waiting)
            if not queue:
                break
            request = queue.peek_request()
            is_ready = request.try_promote() and (self.connector is None or self.connector.try_promote(request))
            if not is_ready or (self.lora is not None and not self.lora.has_slot(request)):
                passed_over.append(queue.pop_request())
            elif not admit(queue, step):
                break
        for request in reversed(passed_over):
            self.skipped_waiting.prepend_request(request)

    def _admit(self, queue: RequestQueue, step: StepPlan) -> bool:
        """Admit the first of a queue; False where it does not fit, which ends the phase: nobody overtakes it.

        What the prefix cache holds is the request's head start.
        """
        request = queue.peek_request()
        hits, num_hit_tokens = self.kv_cache_manager.get_computed_blocks(request)
        num_missing_tokens = request.num_tokens - num_hit_tokens
        if not self.config.enable_chunked_prefill and step.cuts(num_missing_tokens):
            return False
        num_new_tokens = step.clamp(request, num_hit_tokens, num_missing_tokens)
        if not num_new_tokens or self.kv_cache_manager.allocate_slots(
            request, num_new_tokens, num_hit_tokens, hits,
            num_encoder_tokens=0 if step.encoder is None else step.encoder.num_encoder_tokens(request),
            full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
        ) is None:  # fmt: skip
            return step.refuse(request)
        self.start(queue.pop_request(), step, num_new_tokens, num_hit_tokens)
        return True

    def start(self, request: Request, step: StepPlan, num_new_tokens: int, num_computed_tokens: int) -> None:
        """Let a request run that has slots."""
        self.running.append(request)
        if self.lora is not None:
            self.lora.take_slot(request)
        (step.resumed if request.status == RequestStatus.PREEMPTED else step.new).append(request)
        step.add(request, num_new_tokens, self.kv_cache_manager.get_blocks(request.request_id))
        request.start(num_computed_tokens)

    def _preempt_one(self, step: StepPlan) -> int:
        """Preempt the request that the policy can best spare; returns the place it had in `running`."""
        victim_index = choose_victim(self.running, self.config.scheduling_policy)
        victim = self.running.pop(victim_index)
        if victim.request_id in step.num_scheduled_tokens:
            step.remove(victim)
            # Its blocks of this step were made findable, and nobody will fill them.
            self.kv_cache_manager.evict_after(victim, victim.num_computed_tokens)
        self.table.preempt_request(victim)
        step.preempted.append(victim)
        return victim_index

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        """Count the planned tokens as computed, now: the next plan need not wait for this one's results.

        Afterwards a request has caught up (`not is_prefill_chunk`) exactly when this step samples a token for it.
        """
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            request.num_computed_tokens += num_tokens
            num_tokens_due = len(request.all_token_ids) + request.num_output_placeholders
            request.is_prefill_chunk = request.num_computed_tokens < num_tokens_due
            if request.structured_output_request is not None and not request.is_prefill_chunk:
                output.has_structured_output_requests = True

    def update_from_output(self, output: SchedulerOutput, model_output: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Append the sampled tokens, end what has ended, and report what is new.

        It does not touch `num_computed_tokens`: `schedule()` did. Only rejected drafts are subtracted. A request that
        was aborted while the model ran is passed over. The order is that of the plan, whatever order the rows have:
        it decides in which order blocks are freed, and so which are reused first.
        """
        outputs: list[EngineCoreOutput] = []
        ended: set[Request] = set()
        drafts, encoder, find = self.drafts, self.encoder, self.requests.get
        rows = dict(zip(model_output.req_ids, range(len(model_output.req_ids)), strict=True))
        void = () if self.connector is None else self.connector.begin_update(self, output, model_output)
        for request_id in output.num_scheduled_tokens:
            request = find(request_id)
            if request is None or request.is_finished() or request_id in void:
                continue
            if request_id in model_output.errors:
                self.table.fail_request(request, model_output.errors[request_id])
                new_token_ids, has_stopped = [], True
            else:
                new_token_ids = model_output.sampled_token_ids[rows[request_id]]
                if drafts is not None:
                    drafts.take_back_rejected(output, request, len(new_token_ids))
                if encoder is not None and request.mm_features:
                    encoder.free_passed(request)
                if not new_token_ids:
                    continue
                new_token_ids, has_stopped = self._update_request_with_output(request, new_token_ids)
                if request.structured_output_request is not None and new_token_ids:
                    assert self.structured_output_manager is not None
                    advance = self.structured_output_manager.advance
                    new_token_ids, has_stopped = advance(request, new_token_ids, self._append_forced)
            prompt_logprobs, kv_transfer_params = model_output.prompt_logprobs_dict.get(request_id), None
            if has_stopped:
                ended.add(request)
                kv_transfer_params = self.table.free_request(request)
            elif not new_token_ids and prompt_logprobs is None:
                continue
            logprobs = model_output.logprobs[rows[request_id]][: len(new_token_ids)] if model_output.logprobs else None
            outputs.append(request.make_output(new_token_ids, logprobs or None, prompt_logprobs, kv_transfer_params))
        if ended:
            self.table.leave_queues(ended)
        if self.connector is not None:
            outputs += self.connector.end_update(self, model_output, void)
        if self.kv_event_publisher is not None:
            publish_events(self.kv_cache_manager, self.kv_event_publisher, self.connector)
        return outputs

    def _update_request_with_output(self, request: Request, new_token_ids: list[int]) -> tuple[list[int], bool]:
        """Append tokens one by one until one of them ends the request; the rest is dropped."""
        for count, token_id in enumerate(new_token_ids, 1):
            request.append_output_token_ids(token_id)
            if self.check_stop(request, self.max_model_len):
                return new_token_ids[:count], True
        return new_token_ids, False

    def _append_forced(self, request: Request, token_ids: list[int]) -> list[int]:
        """Tokens that a grammar leaves no choice about; the runner has not sampled them, so the next plan names all."""
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        return self._update_request_with_output(request, token_ids)[0]

    def get_grammar_bitmask(self, output: SchedulerOutput) -> GrammarOutput | None:
        """Which tokens may be sampled in this step, for the requests that have a grammar; None where there are none."""
        if self.structured_output_manager is None or not output.has_structured_output_requests:
            return None
        return self.structured_output_manager.grammar_output(self.requests, output)

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Take in the drafts for the next step."""
        assert self.drafts is not None
        self.drafts.update_draft_token_ids(self.requests, draft_token_ids)

    def update_draft_token_ids_in_output(self, draft_token_ids: DraftTokenIds, output: SchedulerOutput) -> None:
        """Put drafts in the place of the placeholders of a step whose sampling was deferred."""
        assert self.drafts is not None
        self.drafts.update_draft_token_ids_in_output(self.requests, draft_token_ids, output)

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises ValueError: an unfinished one has the same id, or it can never fit the pool."""
        self.table.add_request(request)

    def finish_requests(self, request_ids: str | Iterable[str], finished_status: RequestStatus) -> list[str]:
        """End requests from outside (an abort); unknown ids are passed over. Returns the ids that were ended."""
        return self.table.finish_requests(request_ids, finished_status)

    @property
    def num_preemptions(self) -> int:
        """How often a request was preempted since the scheduler was made."""
        return self.table.num_preemptions

    def has_unfinished_requests(self) -> bool:
        """True while a request waits or runs."""
        return self.table.num_unfinished > 0

    def has_finished_requests(self) -> bool:
        """True while the model runner has not been told of a request that ended, or blocks of one are still sent."""
        return bool(self.finished_req_ids) or len(self.requests) > self.table.num_unfinished

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached contents; False, and nothing done, while requests hold blocks. `reset_running_requests`:
        the running ones are preempted first, last one first, so that they come back in their order. `reset_connector`:
        what a KV connector has stored is forgotten too."""
        if reset_running_requests:
            self.prev_step_scheduled_req_ids = set()
        return self.table.reset_prefix_cache(reset_running_requests, reset_connector)
