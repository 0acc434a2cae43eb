"""Where the time of a step goes, as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

    start_profile -> methods of front end, core and ranks are wrapped -> … -> stop_profile -> one JSON file

Tracks: the front end, the core's steps and their phases, each rank's phases, a row per request (queued, prefill,
decode), and counters (KV blocks, requests, tokens). Nothing is wrapped, and nothing costs, until a profile starts.

Upstream twin: `vllm/profiler/wrapper.py`, which hands the same start and stop to torch's or CUDA's profiler.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Event = dict[str, Any]
FRONT_END, CORE, REQUESTS, RANKS = 0, 1, 2, 10
"""Process numbers of the trace; rank r has RANKS + r."""
_WORKER_PHASES = {"execute_model": "execute_model", "sample_tokens": "sample_tokens"}
_RUNNER_PHASES = {
    "_update_states": "update states",
    "prepare_inputs": "prepare inputs",
    "forward": "forward",
    "compute_logits": "logits",
    "sampling_metadata": "sampling metadata",
}
_CORE_PHASES = {"schedule": "schedule", "update_from_output": "update_from_output"}


def now_us() -> float:
    """Microseconds on a clock that all processes of a machine share."""
    return time.monotonic_ns() / 1000


class Recorder:
    """Wraps methods of objects, and keeps an event for each call until `stop`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.events: list[Event] = []
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, method: str, name: str, after: Callable[..., Any] | None = None) -> None:
        """Record calls of `owner.method` under `name`; passed over where there is none.

        after: called with (event, the call's arguments, its result) when it has returned.
        """
        inner = getattr(owner, method, None)
        if inner is None:
            return

        def recorded(*args: Any, **kwargs: Any) -> Any:
            start = now_us()
            try:
                result = inner(*args, **kwargs)
            finally:
                event = {"name": name, "ph": "X", "ts": start, "dur": now_us() - start, "pid": self.pid, "tid": 0}
                self.events.append(event)
            if after is not None:
                after(event, args, result)
            return result

        self.replace(owner, method, recorded)

    def replace(self, owner: Any, method: str, value: Any) -> None:
        """Put `value` in the method's place until `stop`."""
        if method in vars(owner):
            before = vars(owner)[method]
            self._undo.append(lambda: setattr(owner, method, before))
        else:
            self._undo.append(lambda: delattr(owner, method))
        setattr(owner, method, value)

    def count(self, name: str, **values: float) -> None:
        """A point of the counters of this name."""
        self.events.append({"name": name, "ph": "C", "ts": now_us(), "pid": self.pid, "tid": 0, "args": values})

    def stop(self) -> list[Event]:
        """Put everything back; the events."""
        while self._undo:
            self._undo.pop()()
        return self.events


def profile_worker(worker: Any, is_start: bool) -> list[Event]:
    """Start or stop the profile of one rank; stopping gives its events, [] where none was started.

    Called on every rank by `Executor.collective_rpc`.
    Upstream: upstream/vllm/v1/worker/gpu_worker.py:874 — `Worker.profile`.
    """
    running: Recorder | None = vars(worker).pop("profiler", None)
    events = running.stop() if running is not None else []
    if not is_start:
        return events
    recorder = Recorder(RANKS + worker.rank)
    for method, name in _WORKER_PHASES.items():
        recorder.wrap(worker, method, name)
    for method, name in _RUNNER_PHASES.items():
        recorder.wrap(worker.model_runner, method, name)
    recorder.wrap(worker.model_runner.sampler, "forward", "sample")
    worker.profiler = recorder
    return []


def profile_core(core: Any, is_start: bool) -> list[Event]:
    """Start or stop the profile of a core and of all its ranks; stopping gives their events.

    Upstream: upstream/vllm/v1/engine/core.py:613 — `EngineCore.profile`.
    """
    events: list[Event] = []
    for found in core.model_executor.collective_rpc(profile_worker, args=(is_start,)):
        events += found
    running: CoreRecorder | None = vars(core).pop("profiler", None)
    if running is not None:
        events += running.stop()
    if is_start:
        core.profiler = CoreRecorder(core)
        return []
    return events


class CoreRecorder(Recorder):
    """Steps, the scheduler's two phases, what became of requests, and the pool.

    Attributes:
        seen: request id -> (row, when it was queued, when it was first scheduled, when its first token came).
    """

    def __init__(self, core: Any) -> None:
        super().__init__(CORE)
        self.core, self.seen, self.num_steps = core, dict[str, list[Any]](), 0
        scheduler = core.scheduler
        self.wrap(core, "step_fn", "step", self._stepped)
        self.wrap(scheduler, "add_request", "add_request", lambda event, args, _: self._queued(args[0]))
        self.wrap(scheduler, "schedule", "schedule", self._planned)
        self.wrap(scheduler, "update_from_output", "update_from_output", self._updated)
        self.wrap(core.model_executor, "execute_model", "execute_model")
        self.wrap(core.model_executor, "sample_tokens", "sample_tokens")
        for request in scheduler.requests.values():
            self._queued(request)

    def _queued(self, request: Any) -> None:
        self.seen[request.request_id] = [len(self.seen), now_us(), None, None]

    def _planned(self, event: Event, _: Any, plan: Any) -> None:
        event["args"] = {"scheduled": dict(plan.num_scheduled_tokens), "preempted": sorted(plan.preempted_req_ids)}
        for request_id in plan.num_scheduled_tokens:
            state = self.seen.get(request_id)
            if state is not None and state[2] is None:
                state[2] = began = now_us()
                self._span(request_id, "queued", state[0], state[1], began)
        scheduler, pool = self.core.scheduler, self.core.kv_cache_manager.block_pool
        free = pool.get_num_free_blocks()
        self.count("KV blocks", used=self.core.num_blocks - 1 - free, free=free)
        self.count("requests", running=len(scheduler.running), waiting=scheduler.table.num_waiting)
        self.count("tokens in a step", tokens=plan.total_num_scheduled_tokens)

    def _updated(self, _: Event, args: Any, __: Any) -> None:
        results = args[1]
        for request_id, tokens in zip(results.req_ids, results.sampled_token_ids, strict=False):
            state = self.seen.get(request_id)
            if state is None:
                continue
            if tokens and state[3] is None and state[2] is not None:
                state[3] = came = now_us()
                self._span(request_id, "prefill", state[0], state[2], came)
            if request_id not in self.core.scheduler.requests:
                self._ended(request_id)

    def _ended(self, request_id: str) -> None:
        state = self.seen.pop(request_id)
        self.seen[f"\0{state[0]}"] = state  # the id may come again, and its row is its own
        phase, since = ("decode", state[3]) if state[3] is not None else ("prefill", state[2])
        if since is not None:
            self._span(request_id, phase, state[0], since, now_us())

    def _stepped(self, event: Event, _: Any, __: Any) -> None:
        event["name"] = f"step {self.num_steps}"
        self.num_steps += 1

    def _span(self, request_id: str, phase: str, row: int, start: float, end: Any) -> None:
        event = {"name": phase, "ph": "X", "ts": start, "dur": end - start, "pid": REQUESTS, "tid": row}
        self.events.append({**event, "args": {"request": request_id}})

    def stop(self) -> list[Event]:
        """Also the spans of requests that still run."""
        for request_id in [key for key in self.seen if not key.startswith("\0")]:
            self._ended(request_id)
        return super().stop()


class EngineProfiler:
    """A profile of an `LLMEngine` (or `LLM`) and of everything behind it, wherever the core runs.

    Upstream: upstream/vllm/v1/engine/llm_engine.py:327 — `LLMEngine.start_profile`.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = getattr(engine, "llm_engine", engine)
        self.recorder: Recorder | None = None

    def start(self) -> None:
        """Wrap. Raises RuntimeError where a profile runs already."""
        if self.recorder is not None:
            raise RuntimeError("a profile runs already: stop_profile() ends it")
        self.engine.core_client.call_utility("profile", True)
        self.wrap_front_end()

    def wrap_front_end(self) -> None:
        """This process's part of `start`."""
        self.recorder = Recorder(FRONT_END)
        self.recorder.wrap(self.engine.input_processor, "process_inputs", "process_inputs")
        self.recorder.wrap(self.engine.output_processor, "process_outputs", "process_outputs")

    def stop(self) -> dict[str, Any]:
        """The trace, ready for `json.dump`. Raises RuntimeError where no profile runs."""
        if self.recorder is None:
            raise RuntimeError("no profile runs: start_profile() starts one")
        events, self.recorder = self.recorder.stop(), None
        return self.trace(events + self.engine.core_client.call_utility("profile", False))

    @staticmethod
    def trace(events: list[Event]) -> dict[str, Any]:
        """All events as one document."""
        return {"traceEvents": [*_names(events), *sorted(events, key=lambda e: e["ts"])], "displayTimeUnit": "ms"}


def _names(events: list[Event]) -> list[Event]:
    """What the tracks are called, and their order."""
    fixed = {FRONT_END: "front end", CORE: "core: steps and phases", REQUESTS: "requests"}
    found: list[Event] = []
    for pid in sorted({event["pid"] for event in events}):
        name = fixed.get(pid, f"rank {pid - RANKS}")
        found.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}})
        found.append({"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
    rows = {e["tid"]: e["args"]["request"] for e in events if e["pid"] == REQUESTS}
    for row, request_id in rows.items():
        found.append(
            {"name": "thread_name", "ph": "M", "pid": REQUESTS, "tid": row, "args": {"name": f"request {request_id}"}}
        )
    return found


@contextmanager
def profile(engine: Any, path: str | Path | None) -> Iterator[None]:
    """Profile an `LLMEngine` or `LLM` while the block runs, and write the trace; nothing where `path` is None.

    Raises OSError before the block runs where the file cannot be written.
    """
    if path is None:
        yield
        return
    path = Path(path)
    path.write_text("", encoding="utf-8")
    profiler = EngineProfiler(engine)
    profiler.start()
    try:
        yield
    finally:
        path.write_text(json.dumps(profiler.stop()) + "\n", encoding="utf-8")
