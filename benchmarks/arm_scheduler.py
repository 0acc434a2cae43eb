"""One arm of `scheduler.py`: time of `schedule()` + `update_from_output()` per decode step, ours or real vLLM's.

Run by `scheduler.py` in a process of its own; the same loop drives both schedulers.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BLOCK_SIZE = 16


class Mini:
    """Our scheduler."""

    def __init__(self, setting: dict[str, Any]) -> None:
        from mini_vllm import (
            KVCacheManager,
            ModelRunnerOutput,
            Request,
            SamplingParams,
            Scheduler,
            SchedulerConfig,
            get_request_block_hasher,
        )

        seats = setting["running"]
        manager = KVCacheManager(setting["num_blocks"], BLOCK_SIZE, setting["caching"], 4096)
        config = SchedulerConfig(max_num_batched_tokens=max(8192, seats), max_num_seqs=seats)
        self.scheduler = Scheduler(config, manager, 4096)
        self.hasher = get_request_block_hasher(BLOCK_SIZE) if setting["caching"] else None
        self.make_output = lambda ids, tokens: ModelRunnerOutput(ids, tokens)
        self.make_request = lambda name, prompt: Request(
            name, prompt, SamplingParams(max_tokens=2000, ignore_eos=True), block_hasher=self.hasher
        )


class Real:
    """The real scheduler of the pinned release, made as the golden traces' recorder makes it."""

    def __init__(self, setting: dict[str, Any]) -> None:
        sys.path.insert(0, str(ROOT / "mini_vllm" / "tests" / "golden"))
        import record_scheduler as recorder

        recorder.init_none_hash(recorder.sha256)
        seats = setting["running"]
        config = {
            "block_size": BLOCK_SIZE, "max_model_len": 4096, "max_num_batched_tokens": max(8192, seats),
            "max_num_seqs": seats, "threshold": 0, "policy": "fcfs", "reserve": True, "caching": setting["caching"],
            "num_blocks": setting["num_blocks"], "async": False,
        }  # fmt: skip
        with recorder.stand_in_model(4096) as folder:
            self.scheduler = recorder.make_scheduler(config, folder)
        hasher = recorder.get_request_block_hasher(BLOCK_SIZE, recorder.sha256) if setting["caching"] else None

        def make_request(name: str, prompt: list[int]) -> Any:
            params = recorder.SamplingParams(max_tokens=2000, ignore_eos=True)
            return recorder.Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                block_hasher=hasher,
            )

        self.make_request, self.make_output = make_request, recorder.model_output


def measure(setting: dict[str, Any], arm: type) -> float:
    """Median microseconds per decode step with `running` requests of 64 prompt tokens and `queued` more waiting."""
    gc.collect()  # what the setting before has left is not this one's cost
    side = arm(setting)
    scheduler = side.scheduler
    for i in range(setting["running"] + setting["queued"]):
        scheduler.add_request(side.make_request(f"r{i}", [(i * 7 + t) % 997 for t in range(64)]))
    times: list[float] = []
    while len(times) < setting["steps"]:
        start = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        ids = list(plan.num_scheduled_tokens)
        tokens = [[] if scheduler.requests[name].is_prefill_chunk else [5] for name in ids]
        result = side.make_output(ids, tokens)
        taken = time.perf_counter()
        scheduler.update_from_output(plan, result)
        if plan.total_num_scheduled_tokens == setting["running"] == len(ids):
            times.append(planned - start + time.perf_counter() - taken)
    return statistics.median(times) * 1e6


def main() -> None:
    """argv: the arm's name as JSON; answers `measure(setting)`."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.turns import serve

    arm = {"mini": Mini, "real": Real}[json.loads(sys.argv[1])]
    serve({"measure": lambda setting: measure(setting, arm)})


if __name__ == "__main__":
    main()
