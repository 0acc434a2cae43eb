"""Lab 03-01 in the engine: our scheduler with the two phases of a step taken from a learner's `schedule_step`.

The lab's function knows nothing of prefix hits, of states, or of the plan's wire format. What it lacks is added here;
what it decides is taken as it is, and checked."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course.plugs.guards import Watch
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.step_plan import StepPlan
from mini_vllm.request import Request, RequestStatus


class LabRequest:
    """A request as `schedule_step` sees it: an id and two counters. A waiting request counts what the prefix cache
    holds of it as computed. The cache is asked when the counter is first read, which is when its turn comes: what was
    admitted a moment ago can be hit already."""

    def __init__(self, request: Request, scheduler: LabScheduler) -> None:
        self.request, self._scheduler = request, scheduler
        self._hits: KVCacheBlocks | None = None
        self._num_hit_tokens, self._hashes = 0, [b""]

    @property
    def request_id(self) -> str:
        """The engine's id."""
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        """Tokens that exist."""
        return self.request.num_tokens

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose keys and values are in the cache."""
        if self.request.status == RequestStatus.RUNNING:
            return self.request.num_computed_tokens
        return self.num_hit_tokens

    @num_computed_tokens.setter
    def num_computed_tokens(self, value: int) -> None:
        text = f"schedule_step moved num_computed_tokens of request {self.request_id!r}"
        raise self._scheduler.watch.error(f"{text}; the engine does that afterwards", "S4")

    def hits(self) -> KVCacheBlocks:
        """Blocks of the cached prefix, as many as still hold it; the cache is asked again where one no longer does."""
        manager, request = self._scheduler.kv_cache_manager, self.request
        if self._hits is None:
            self._hits, self._num_hit_tokens = manager.get_computed_blocks(request)
            self._hashes = _hashes_of(self._hits)
        elif _hashes_of(self._hits) != self._hashes:  # a block was handed out to somebody since the cache was asked
            find = manager.coordinator.find_longest_cache_hit
            blocks, self._num_hit_tokens = find(request.block_hashes, request.num_tokens - 1)
            self._hits = KVCacheBlocks(blocks)
            self._hashes = _hashes_of(self._hits)
        return self._hits

    @property
    def num_hit_tokens(self) -> int:
        """Tokens of the cached prefix."""
        self.hits()
        return self._num_hit_tokens

    def __repr__(self) -> str:
        return f"request {self.request_id!r} ({self.num_computed_tokens} of {self.num_tokens} tokens computed)"


def _hashes_of(hits: KVCacheBlocks) -> list[Any]:
    return [block.block_hash for blocks in hits.blocks for block in blocks]


class LabKV:
    """The cache as `schedule_step` sees it. By request id: `granted`, tokens with slots; `new_blocks`, block ids."""

    def __init__(self, scheduler: LabScheduler) -> None:
        self._scheduler = scheduler
        self.granted: dict[str, int] = {}
        self.new_blocks: dict[str, KVCacheBlocks] = {}

    def allocate_slots(self, request: LabRequest, num_new_tokens: int) -> list[int] | None:
        """Slots for `num_new_tokens` more tokens: ids of new blocks, perhaps none; None where there is no room."""
        scheduler, request_id = self._scheduler, request.request_id
        whole = isinstance(num_new_tokens, int | np.integer) and num_new_tokens >= 1
        asked = f"allocate_slots was asked for {num_new_tokens!r} tokens for request {request_id!r}"
        scheduler.watch.require(whole, asked)
        again = f"request {request_id!r} got slots twice in one step"
        scheduler.watch.require(request_id not in self.granted, again)
        hits, num_hit_tokens = None, 0
        if request.request.status != RequestStatus.RUNNING:
            hits, num_hit_tokens = request.hits(), request.num_hit_tokens
        blocks = scheduler.kv_cache_manager.allocate_slots(
            request.request,
            num_new_tokens,
            num_new_computed_tokens=num_hit_tokens,
            new_computed_blocks=hits,
            full_sequence_must_fit=scheduler.config.scheduler_reserve_full_isl
            and request.request.status != RequestStatus.RUNNING,
        )
        if blocks is None:
            return None
        self.granted[request_id] = num_new_tokens
        self.new_blocks[request_id] = blocks
        return [block_id for ids in blocks.get_block_ids() for block_id in ids]


class LabScheduler(Scheduler):
    """Our scheduler with the two phases of a step taken from lab 03-01."""

    def __init__(self, schedule_step: Callable[..., dict[str, int]], watch: Watch, *args: Any, **held: Any) -> None:
        super().__init__(*args, **held)
        self._schedule_step, self.watch = schedule_step, watch

    def _schedule_running(self, step: StepPlan) -> None:
        """Both phases: what the learner's function decides, checked and entered into the plan."""
        self._promote_ready()
        running = [LabRequest(request, self) for request in self.running]
        waiting = deque(LabRequest(request, self) for request in self.waiting)
        by_id = {view.request_id: view for view in (*running, *waiting)}
        kv = LabKV(self)

        def preempt(view: LabRequest) -> None:
            request_id = view.request_id
            runs = view.request.status == RequestStatus.RUNNING
            self.watch.require(runs, f"preempt({request_id!r}): it is not running", "S5")
            planned = f"preempt({request_id!r}): it has slots of this step already, only the last of running may go"
            self.watch.require(request_id not in kv.granted, planned)
            self.table.preempt_request(view.request)
            step.preempted.append(view.request)
            waiting.appendleft(view)

        plan = self.watch.call(
            self._schedule_step,
            running,
            waiting,
            kv,
            max_num_batched_tokens=self.max_num_scheduled_tokens,
            max_num_seqs=self.max_num_running_reqs,
            long_prefill_token_threshold=self.config.long_prefill_token_threshold,
            preempt=preempt,
        )
        self._check(plan, running, waiting, kv, step, by_id)
        self.running[:] = [view.request for view in running]
        self.waiting.remove_requests(set(self.waiting))
        for view in waiting:
            self.waiting.add_request(view.request)
        for request_id, num_tokens in plan.items():
            self._enter(by_id[request_id], int(num_tokens), step, kv)

    def _promote_ready(self) -> None:
        """Move those whose grammar is ready to the front of `waiting`: the lab knows this queue alone."""
        passed_over: list[Request] = []
        while len(self.skipped_waiting):
            request = self.skipped_waiting.pop_request()
            (self.waiting.prepend_request if request.try_promote() else passed_over.append)(request)
        for request in reversed(passed_over):
            self.skipped_waiting.prepend_request(request)

    def _schedule_waiting(self, step: StepPlan) -> None:
        """Done already."""

    def _enter(self, view: LabRequest, num_tokens: int, step: StepPlan, kv: LabKV) -> None:
        request = view.request
        if request.status == RequestStatus.RUNNING:
            step.running.append(request)
            step.add(request, num_tokens, kv.new_blocks[request.request_id])
            return
        (step.resumed if request.status == RequestStatus.PREEMPTED else step.new).append(request)
        step.add(request, num_tokens, self.kv_cache_manager.get_blocks(request.request_id))
        request.num_computed_tokens = view.num_hit_tokens
        request.status = RequestStatus.RUNNING
        if not request.output_token_ids:
            request.num_cached_tokens = request.num_computed_tokens

    def _check(
        self,
        plan: Any,
        running: Sequence[Any],
        waiting: Sequence[Any],
        kv: LabKV,
        step: StepPlan,
        by_id: dict[str, Any],
    ) -> None:
        """S1 to S5, and that slots and plan agree."""
        need, budget, seats = self.watch.require, self.max_num_scheduled_tokens, self.max_num_running_reqs
        self._check_form(plan, running, waiting, by_id)
        total = sum(plan.values())
        need(total <= budget, f"{total} tokens are planned, max_num_batched_tokens is {budget}", "S2")
        need(len(running) <= seats, f"{len(running)} requests run, max_num_seqs is {seats}", "S3")
        places = Counter(view.request_id for view in (*running, *waiting))
        for request_id in by_id:
            n = places[request_id]
            where = "in neither queue" if n == 0 else "in both queues, or twice in one"
            need(n == 1, f"request {request_id!r} is {where}", "S1")
        gone = {request.request_id for request in step.preempted}
        for request_id in gone & plan.keys():
            raise self.watch.error(f"request {request_id!r} was preempted in this step and is in its plan", "S5")
        seated = {view.request_id for view in running}
        for request_id in {r.request_id for r in self.running} - seated - gone:
            raise self.watch.error(f"request {request_id!r} left running, and preempt was not called for it", "S5")
        new = [i for i in seated if by_id[i].request.status != RequestStatus.RUNNING]
        need(not (gone and new), f"request {new and new[0]!r} was admitted in a step that preempted {sorted(gone)}")
        for request_id in plan.keys() | kv.granted.keys() | set(new):
            n, slots = plan.get(request_id, 0), kv.granted.get(request_id, 0)
            need(n == slots, f"request {request_id!r} has slots for {slots} tokens and is planned {n}")
            need(n == 0 or request_id in seated, f"request {request_id!r} is in the plan and still waits", "S1")
            lacks = by_id[request_id].num_tokens - by_id[request_id].num_computed_tokens
            need(n <= lacks, f"request {request_id!r} lacks {lacks} tokens and is planned {n}", "S4")
        need(plan or gone or not by_id, f"nothing is planned, though {len(by_id)} requests have tokens to compute")

    def _check_form(self, plan: Any, running: Sequence[Any], waiting: Sequence[Any], by_id: dict[str, Any]) -> None:
        """Right kinds of things, before anybody counts them."""
        need = self.watch.require
        need(isinstance(plan, dict), f"schedule_step must return a dict, got {type(plan).__name__}")
        strange = next((view for view in (*running, *waiting) if not isinstance(view, LabRequest)), None)
        need(strange is None, f"running and waiting must hold the requests that were given, found {strange!r}")
        stranger = next((i for i in plan if i not in by_id), None)
        need(stranger is None, f"the plan holds {stranger!r}, which is no request of this step")
        for request_id, num_tokens in plan.items():
            whole = isinstance(num_tokens, int | np.integer) and num_tokens >= 1
            need(whole, f"request {request_id!r} is planned {num_tokens!r} tokens; a plan holds whole numbers from 1")
