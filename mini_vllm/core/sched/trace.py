"""A record of what the scheduler decided, step by step, as JSON: `mini-vllm generate --trace FILE`.

The scheduler player of the website plays such a file. Recording wraps two calls of one scheduler, `schedule` and
`update_from_output`, and changes no decision. Upstream has no twin; its nearest relative is
upstream/vllm/v1/metrics/stats.py:171 — `SchedulerStats`, totals of a step without block ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus

FORMAT, VERSION = "mini-vllm-trace", 1
MAX_FREE_BLOCKS = 64
"""So many blocks of the free queue are written, from its front; `num_free` counts all."""
MAX_PROMPT_CHARACTERS = 60


class Trace:
    """Grows by one entry a step while `record` is active.

    Every entry of `steps` holds the plan and the state right after `schedule`, and what the step brought:

    scheduled: request id -> tokens of this step. running, waiting: ids in order.
    counters: id -> [num_computed_tokens, num_tokens], after `schedule` and before the new token.
    tables: id -> block ids. free: ids of free blocks from the front of the queue; num_free: how many there are.
    findable: those blocks of tables and free whose content prefix caching can find.
    preempted: ids. cached: id -> tokens found in the prefix cache at admission.
    sampled: id -> pieces of text. finished: id -> reason.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.requests: dict[str, dict[str, Any]] = {}
        self.steps: list[dict[str, Any]] = []
        self._planned: dict[int, dict[str, Any]] = {}

    def planned(self, output: SchedulerOutput) -> None:
        """Take down a plan; a step without tokens is passed over."""
        for request in self.engine.scheduler.requests.values():
            self._introduce(request)
        if not output.total_num_scheduled_tokens and not output.preempted_req_ids:
            return
        step = self._state() | {
            "scheduled": dict(output.num_scheduled_tokens),
            "preempted": sorted(output.preempted_req_ids),
            "cached": {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs},
            "sampled": {},
            "finished": {},
        }
        self.steps.append(step)
        self._planned[id(output)] = step

    def _introduce(self, request: Request) -> None:
        if request.request_id in self.requests:
            return
        words = self._text(request.prompt_token_ids)
        short = words if len(words) <= MAX_PROMPT_CHARACTERS else words[: MAX_PROMPT_CHARACTERS - 1] + "…"
        tokens = {"num_prompt_tokens": request.num_prompt_tokens, "max_tokens": request.sampling_params.max_tokens}
        self.requests[request.request_id] = {"id": request.request_id, "prompt": short, **tokens}

    def _state(self) -> dict[str, Any]:
        scheduler = self.engine.scheduler
        manager = self.engine.engine_core.kv_cache_manager
        pool = manager.block_pool
        tables = {r.request_id: list(chain(*manager.get_block_ids(r.request_id))) for r in scheduler.running}
        free = [block.block_id for block in islice(_free_blocks(pool), MAX_FREE_BLOCKS)]
        shown = sorted({*free, *(block for table in tables.values() for block in table)})
        return {
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "counters": {r.request_id: [r.num_computed_tokens, r.num_tokens] for r in scheduler.requests.values()},
            "tables": tables,
            "free": free,
            "num_free": pool.get_num_free_blocks(),
            "findable": [block for block in shown if pool.blocks[block].block_hash is not None],
        }

    def updated(self, output: SchedulerOutput, results: ModelRunnerOutput, requests: dict[str, Request]) -> None:
        """Take down what a step brought. `requests` are those of its plan, also the ended ones."""
        step = self._planned.pop(id(output), None)
        if step is None:
            return
        for request_id, token_ids in zip(results.req_ids, results.sampled_token_ids, strict=True):
            if token_ids:
                step["sampled"][request_id] = [self._text([token_id]) for token_id in token_ids]
        for request_id, request in requests.items():
            if RequestStatus.is_finished(request.status):
                step["finished"][request_id] = str(RequestStatus.get_finished_reason(request.status))

    def _text(self, token_ids: list[int]) -> str:
        tokenizer = self.engine.tokenizer
        return tokenizer.decode(token_ids) if tokenizer is not None else " ".join(map(str, token_ids))

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for `json.dump`."""
        config, core = self.engine.config, self.engine.engine_core
        limits = {
            "model": Path(self.engine.folder).name if self.engine.folder else "toy",
            "block_size": config.block_size,
            "num_blocks": core.num_blocks,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "enable_prefix_caching": config.enable_prefix_caching,
        }
        requests = list(self.requests.values())
        return {"format": FORMAT, "version": VERSION, "config": limits, "requests": requests, "steps": self.steps}

    def write(self, path: Path) -> None:
        """Write the file, one step a line. Raises OSError."""
        trace = self.as_dict()
        steps = ",\n".join(_compact(step) for step in trace.pop("steps"))
        path.write_text(f'{_compact(trace)[:-1]},"steps":[\n{steps}\n]}}\n', encoding="utf-8")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _free_blocks(pool: Any) -> Iterator[Any]:
    """The free queue from its front, without walking all of it."""
    queue = pool.free_block_queue
    block = queue.fake_free_list_head.next_free_block
    while block is not None and block is not queue.fake_free_list_tail:
        yield block
        block = block.next_free_block


@contextmanager
def record(engine: Any) -> Iterator[Trace]:
    """Record an `LLMEngine` while the block runs; the engine is then as before."""
    trace, scheduler = Trace(engine), engine.scheduler
    schedule, update = scheduler.schedule, scheduler.update_from_output

    def recorded_schedule() -> SchedulerOutput:
        output = schedule()
        trace.planned(output)
        return output

    def recorded_update(output: SchedulerOutput, results: ModelRunnerOutput) -> Any:
        requests = {i: scheduler.requests[i] for i in output.num_scheduled_tokens if i in scheduler.requests}
        outputs = update(output, results)
        trace.updated(output, results, requests)
        return outputs

    scheduler.schedule, scheduler.update_from_output = recorded_schedule, recorded_update
    try:
        yield trace
    finally:
        scheduler.schedule, scheduler.update_from_output = schedule, update
