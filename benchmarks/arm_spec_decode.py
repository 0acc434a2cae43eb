"""One arm: an engine with or without drafts, mini_vllm or real vLLM's CPU build. Asked by `spec_decode.py`.

The same text serves both: `job["engine"]` says which `LLM` is imported, under whichever Python runs this.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

JOB: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
for name, value in {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR",
}.items():  # fmt: skip
    os.environ.setdefault(name, value)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


class SpecArm:
    """The engine of a job: `engine`, `model`, `speculative_config` or None, `max_num_seqs`, `max_tokens`, and whether
    `processor_time` counts instead of time on the wall."""

    def __init__(self, job: dict[str, Any]) -> None:
        real = job["engine"] == "vllm"
        if real:
            from vllm import LLM, SamplingParams
            from vllm.v1.executor.uniproc_executor import UniProcExecutor

            # pocket-medusa's card says why the release has to be told not to count the weights that it read.
            settings: dict[str, Any] = {
                "dtype": "float32", "model_loader_extra_config": {"enable_weights_track": False},
                "distributed_executor_backend": UniProcExecutor,
            }  # fmt: skip
        else:
            from mini_vllm import LLM, SamplingParams

            settings = {"kv_cache_memory_bytes": 256 << 20}
        self.llm = LLM(
            job["model"], max_model_len=1024, max_num_seqs=job["max_num_seqs"], max_num_batched_tokens=2048,
            enable_prefix_caching=False, disable_log_stats=False, speculative_config=job["speculative_config"],
            **settings,
        )  # fmt: skip
        self.params: Any = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True)
        self.clock = time.process_time if job["processor_time"] else time.perf_counter
        self.steps = 0
        core: Any = self.llm.llm_engine.engine_core
        core = getattr(core, "engine_core", core)
        plan = core.scheduler.schedule
        drafts = None if real else core.model_runner.drafts
        if drafts is not None and drafts.switch is not None:
            drafts.switch.clock = self.clock

        def counted(*args: Any) -> Any:
            output = plan(*args)
            self.steps += output.total_num_scheduled_tokens > 0
            return output

        core.scheduler.schedule = counted

    def _drafts(self) -> list[int]:
        found = {metric.name: metric for metric in self.llm.get_metrics()}
        return [int(getattr(found.get(f"vllm:spec_decode_{name}"), "value", 0)) for name in COUNTERS]

    def generate(self, prompts: list[list[int]]) -> dict[str, Any]:
        """Seconds, steps, what became of drafts, and the tokens."""
        before, self.steps, start = self._drafts(), 0, self.clock()
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], self.params, use_tqdm=False)
        seconds = self.clock() - start
        drafts = [after - was for after, was in zip(self._drafts(), before, strict=True)]
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        return {"seconds": seconds, "steps": self.steps, "drafts": drafts, "tokens": tokens}


def main() -> None:
    from benchmarks.turns import serve

    arm = SpecArm(JOB)
    serve({"start": lambda: "up", "generate": arm.generate})


if __name__ == "__main__":
    main()
