"""Serve a workload without a model: the engine's own scheduler plans, and a cost model says how long a step takes.

    arrivals -> Scheduler.schedule -> CostModel.seconds -> the clock moves on -> update_from_output -> …

Queues, chunks, prefix hits and preemptions are therefore the real ones, at some thousand steps a second whatever the
model. `replay` serves the same workload on an engine and writes down its steps, for the model to be fitted to, and its
times, to be compared with. Upstream has no twin.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from mini_vllm.benchmarks.cost_model import CostModel, StepShape
from mini_vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from mini_vllm.benchmarks.serve_metrics import BenchmarkMetrics, calculate_metrics
from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_utils import get_request_block_hasher
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

_TOKEN = 7  # what every simulated row samples


@dataclass(frozen=True)
class SimRequest:
    """arrival: seconds after the start. output_len: tokens; an end of sequence before them is passed over."""

    arrival: float
    prompt_token_ids: list[int]
    output_len: int
    priority: int = 0


@dataclass
class Served:
    """How a workload went, simulated or not.

    Attributes:
        outputs: one a request, in their order, with the fields that a client of a server would have; of `replay` also
            the tokens.
        seconds: from 0 to the last token.
        steps: (shape, seconds) of each. num_preemptions: of all requests.
    """

    outputs: list[RequestFuncOutput]
    seconds: float
    steps: list[tuple[StepShape, float]]
    num_preemptions: int = 0

    def metrics(self, percentiles: Sequence[float] = (50.0, 99.0)) -> BenchmarkMetrics:
        """Throughput and times, counted as `mini-vllm bench serve` counts them."""
        return calculate_metrics(self.outputs, self.seconds, percentiles)[0]


class Simulator:
    """An engine in which only the model is missing.

    Args:
        cost: of a step.
        num_blocks, block_size, enable_prefix_caching, max_model_len: the pool, as the engine's arguments.
        limits: `max_num_seqs`, `max_num_batched_tokens`, … (see `SchedulerConfig`).

    Raises ValueError for `async_scheduling`: its plans overlap with the model, and steps have no time of their own.
    """

    def __init__(
        self,
        cost: CostModel,
        *,
        num_blocks: int,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        max_model_len: int = 1024,
        **limits: Any,
    ) -> None:
        self.cost, self.config = cost, SchedulerConfig(**limits)
        if self.config.async_scheduling:
            raise ValueError("async_scheduling must be False: the simulator has one step at a time")
        self.max_model_len = max_model_len
        self._pool = (num_blocks, block_size, enable_prefix_caching, max_model_len)
        self._hasher = get_request_block_hasher(block_size) if enable_prefix_caching else None

    @classmethod
    def like(cls, engine: Any, cost: CostModel) -> Simulator:
        """With the settings of an `LLMEngine` (or `LLM`)."""
        engine = getattr(engine, "llm_engine", engine)
        config, limits = engine.config, engine.config.scheduler
        return cls(
            cost,
            num_blocks=engine.engine_core.num_blocks,
            block_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            max_model_len=engine.max_model_len,
            **{each.name: getattr(limits, each.name) for each in fields(SchedulerConfig) if each.init},
        )

    def run(self, requests: Sequence[SimRequest], seed: int | None = None) -> Served:
        """Serve them on an empty pool. seed: of disturbances as they were measured; None: an undisturbed machine.

        Raises ValueError for a request that the pool could never serve.
        """
        chance = None if seed is None else np.random.default_rng(seed)
        manager = KVCacheManager(*self._pool)
        for request in requests:
            manager.check_fits(len(request.prompt_token_ids), request.output_len)
        scheduler = Scheduler(self.config, manager, self.max_model_len)
        run = _Run(requests, scheduler, self._make)
        now = 0.0
        while run.unfinished():
            now = max(now, run.next_arrival() if not scheduler.has_unfinished_requests() else now)
            new = run.admit(now)
            plan = scheduler.schedule()
            shape = StepShape.of(plan, scheduler.requests, new)
            seconds = self.cost.seconds(shape) if chance is None else self.cost.disturbed(shape, chance)
            now += seconds
            ids = list(plan.num_scheduled_tokens)
            rows = [[] if scheduler.requests[i].is_prefill_chunk else [_TOKEN] for i in ids]
            scheduler.update_from_output(plan, ModelRunnerOutput(ids, rows))
            run.took([(i, 1) for i, row in zip(ids, rows, strict=True) if row], now)
            run.steps.append((shape, seconds))
        return Served(run.outputs, now, run.steps, scheduler.num_preemptions)

    def _make(self, index: int, request: SimRequest) -> Request:
        params = SamplingParams(max_tokens=request.output_len, temperature=0.0, ignore_eos=True)
        return Request(
            str(index),
            request.prompt_token_ids,
            params,
            priority=request.priority,
            arrival_time=request.arrival,
            block_hasher=self._hasher,
        )


class _Run:
    """Who comes when, and what each got so far."""

    def __init__(self, requests: Sequence[SimRequest], scheduler: Any, make: Any) -> None:
        self.requests, self.scheduler, self.make = requests, scheduler, make
        self.coming = sorted(range(len(requests)), key=lambda i: requests[i].arrival, reverse=True)
        self.outputs = [RequestFuncOutput(prompt_len=len(r.prompt_token_ids), start_time=r.arrival) for r in requests]
        self.steps: list[tuple[StepShape, float]] = []
        self.left = len(requests)

    def unfinished(self) -> bool:
        return self.left > 0

    def next_arrival(self) -> float:
        return self.requests[self.coming[-1]].arrival

    def admit(self, now: float) -> int:
        """Queue everybody who is due; how many they were."""
        count = 0
        while self.coming and self.requests[self.coming[-1]].arrival <= now:
            index = self.coming.pop()
            self.scheduler.add_request(self.make(index, self.requests[index]))
            count += 1
        return count

    def took(self, tokens: Sequence[tuple[str, int]], now: float) -> None:
        """These got so many tokens at `now`; with drafts more than one."""
        for request_id, count in tokens:
            index = int(request_id)
            output, since = self.outputs[index], now - self.requests[index].arrival
            if output.output_tokens:
                output.itl.append(since - output.latency)
            else:
                output.ttft = since
            output.latency, output.output_tokens = since, output.output_tokens + count
            if output.output_tokens >= self.requests[index].output_len:
                output.success = True
                self.left -= 1


def replay(engine: Any, requests: Sequence[SimRequest], clock: str = "wall") -> Served:
    """Serve the same workload on an `LLMEngine` (or `LLM`) in this process, on an empty prefix cache.

    The time of a step is all that passes from the end of the one before, or from the arrival that ended a pause, to its
    own end: admission, planning, the model, and text.

    clock: "wall": real time, in which pauses are slept. "cpu": the processor time of this process, in which pauses are
        skipped; on a machine that others use, too, it says what an idle one would take, where one thread computes.

    Raises ValueError for another clock.
    """
    if clock not in ("wall", "cpu"):
        raise ValueError(f"clock must be 'wall' or 'cpu', got {clock!r}")
    engine = getattr(engine, "llm_engine", engine)
    engine.reset_prefix_cache()
    time_of = _Clock(clock)
    scheduler, before = engine.scheduler, engine.scheduler.num_preemptions
    shapes: list[StepShape] = []
    schedule = scheduler.schedule
    new = 0

    def watched() -> Any:
        plan = schedule()
        if plan.total_num_scheduled_tokens:
            shapes.append(StepShape.of(plan, scheduler.requests, new))
        return plan

    def add(index: int, request: SimRequest) -> Any:
        params = SamplingParams(max_tokens=request.output_len, temperature=0.0, ignore_eos=True)
        engine.add_request(str(index), {"prompt_token_ids": request.prompt_token_ids}, params, request.priority)

    run = _Run(requests, _Adder(), add)
    scheduler.schedule = watched
    last = 0.0
    try:
        while run.unfinished():
            if not engine.has_unfinished_requests():
                last = time_of.wait_until(run.next_arrival())
            new, known = run.admit(time_of.now()), len(shapes)
            outputs = engine.step()
            now = time_of.now()
            if len(shapes) > known:
                run.steps.append((shapes[-1], now - last))
            last = now
            for output in outputs:
                made, known_tokens = output.outputs[0].token_ids, run.outputs[int(output.request_id)].output_tokens
                run.took([(output.request_id, len(made) - known_tokens)], now)
                if output.finished:
                    run.outputs[int(output.request_id)].tokens = list(made)
    finally:
        scheduler.schedule = schedule
    return Served(run.outputs, last, run.steps, scheduler.num_preemptions - before)


class _Clock:
    """Seconds since it was made."""

    def __init__(self, kind: str) -> None:
        self.read = time.perf_counter if kind == "wall" else time.process_time
        self.sleeps, self.start = kind == "wall", self.read()

    def now(self) -> float:
        return self.read() - self.start

    def wait_until(self, at: float) -> float:
        """Pass the time until `at`, if it is to come; what it is then."""
        missing = at - self.now()
        if missing > 0 and self.sleeps:
            time.sleep(missing)
        elif missing > 0:
            self.start -= missing
        return max(at, self.now()) if missing > 0 else self.now()


class _Adder:
    """Stands where `_Run` expects a scheduler: the engine has queued the request already."""

    def add_request(self, request: Any) -> None:
        """Nothing is left to be done."""
