"""The life of two requests on pocket, with the calls of every step as a profiler saw them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.core.sched.trace import record as record_trace

POCKET = str(Path(__file__).resolve().parents[3] / "models" / "pocket")
ENGINE = {"block_size": 8, "num_blocks": 24, "max_num_batched_tokens": 8, "max_num_seqs": 4}
STATIONS = {
    ("engine/input_processor.py", "process_inputs"): ("front end", "InputProcessor.process_inputs"),
    ("tokenizers/bpe.py", "encode"): ("front end", "BPETokenizer.encode"),
    ("core/sched/request_table.py", "add_request"): ("core", "Scheduler.add_request"),
    ("core/sched/scheduler.py", "schedule"): ("core", "Scheduler.schedule"),
    ("core/kv_cache_manager.py", "get_computed_blocks"): ("core", "KVCacheManager.get_computed_blocks"),
    ("core/kv_cache_manager.py", "allocate_slots"): ("core", "KVCacheManager.allocate_slots"),
    ("worker/model_runner.py", "execute_model"): ("worker", "ModelRunner.execute_model"),
    ("worker/model_runner.py", "prepare_inputs"): ("worker", "ModelRunner.prepare_inputs"),
    ("worker/model_runner.py", "_forward"): ("worker", "the model's forward pass"),
    ("worker/model_runner.py", "sample_tokens"): ("worker", "ModelRunner.sample_tokens"),
    ("sample/sampler.py", "forward"): ("worker", "Sampler.forward"),
    ("core/sched/scheduler.py", "update_from_output"): ("core", "Scheduler.update_from_output"),
    ("core/sched/utils.py", "check_stop"): ("core", "check_stop"),
    ("core/kv_cache_manager.py", "free"): ("core", "KVCacheManager.free"),
    ("engine/output_processor.py", "process_outputs"): ("front end", "OutputProcessor.process_outputs"),
    ("engine/detokenizer.py", "update"): ("front end", "IncrementalDetokenizer.update"),
}
"""Place in mini_vllm -> whose work it is, and its name. A queue's own `add_request` is another file's."""
TURN = "<|user|>\n{}<|end|>\n<|assistant|>\n"
ARRIVALS = {
    0: [("A", "What is a KV block?", 5)],
    1: [("B", "What is preemption?", 3)],
}


class Calls:
    """Names of the stations that were entered, in their order; one that follows itself is counted once."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        file, found = frame.f_code.co_filename, frame.f_code.co_name
        for (place, name), station in STATIONS.items():
            if found == name and file.endswith(f"mini_vllm/{place}") and self.seen[-1:] != [list(station)]:
                self.seen.append(list(station))

    def take(self) -> list[list[str]]:
        """What was seen since the last time."""
        seen, self.seen = self.seen, []
        return seen


def run() -> tuple[dict[str, Any], list[list[list[str]]], list[list[list[str]]]]:
    """The trace; calls of each arrival; calls of each step."""
    engine, calls = LLMEngine(POCKET, **ENGINE), Calls()
    arrivals, steps, left = [], [], dict(ARRIVALS)
    with record_trace(engine) as trace:
        sys.setprofile(calls)
        try:
            while left or engine.has_unfinished_requests():
                for name, prompt, max_tokens in left.pop(len(steps), []):
                    engine.add_request(
                        name, TURN.format(prompt), SamplingParams(max_tokens=max_tokens, temperature=0.0)
                    )
                    arrivals.append(calls.take())
                engine.step()
                steps.append(calls.take())
        finally:
            sys.setprofile(None)
    return trace.as_dict(), arrivals, steps


def record() -> dict[str, Any]:
    """The trace with the calls of each step, and the answers."""
    trace, arrivals, calls = run()
    steps = trace["steps"]
    for step, seen in zip(steps, calls, strict=True):
        step["calls"] = seen
    first = next(i for i, step in enumerate(steps) if "A" in step["sampled"])
    names = [name for _, name in calls[first]]
    before = [name for name in ("check_stop", "Sampler.forward", "KVCacheManager.allocate_slots") if name in names]
    forward = names.index("the model's forward pass")
    last = [step for step in steps if "A" in step["scheduled"]][-1]
    both = steps[next(i for i, step in enumerate(steps) if "B" in step["scheduled"])]
    answers = {
        "order": next(name for name in before if names.index(name) < forward),
        "first": first + 1,
        "share": both["scheduled"]["B"],
        "rows": len(both["sampled"]),
        "passes": sum("A" in step["scheduled"] for step in steps),
        "computed": last["counters"]["A"][0],
    }
    return {"answers": answers, "arrivals": arrivals, **trace}
