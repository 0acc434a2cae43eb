"""One arm: real vLLM's CPU build in this process, eager or compiled. Asked by `engines.py`, under that build's Python.

The engine core, the worker and the model live in the calling process (no messages between processes), which is the
fastest way on a CPU; blocks have the size that vLLM chooses there. Of this repository only the prompts are imported.
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
if JOB.get("eager"):
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


class VllmArm:
    """The engine of a job."""

    def __init__(self, job: dict[str, Any]) -> None:
        import vllm
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        self.job = job
        self.llm = vllm.LLM(
            job["model"], dtype="float32", enforce_eager=job["eager"], skip_tokenizer_init=True,
            max_model_len=job["max_model_len"], max_num_seqs=max(job["batches"]), max_num_batched_tokens=2048,
            distributed_executor_backend=UniProcExecutor, disable_log_stats=True,
        )  # fmt: skip
        self.params = vllm.SamplingParams(
            temperature=0.0, max_tokens=job["output_len"], ignore_eos=True, detokenize=False
        )
        self.vocab_size = self.llm.llm_engine.model_config.get_vocab_size()

    def generate(self, batch: int, seed: int) -> float:
        """Seconds for a batch."""
        from benchmarks.common import make_prompts

        prompts = make_prompts(batch, self.job["prompt_len"], self.vocab_size, seed)
        start = time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], self.params, use_tqdm=False)
        elapsed = time.perf_counter() - start
        assert sum(len(o.outputs[0].token_ids) for o in outputs) == batch * self.job["output_len"]
        return elapsed

    def warm_up(self, batch: int) -> None:
        """Run a batch twice: compiled code is made for the shapes that come."""
        for round_ in range(2):
            self.generate(batch, batch + 7919 * round_)

    def version(self) -> str:
        """What a reader is told of this arm."""
        import torch
        import vllm

        size = self.llm.llm_engine.vllm_config.cache_config.block_size
        return (
            f"vllm {vllm.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, blocks of {size}"
        )


if __name__ == "__main__":
    from benchmarks.turns import serve

    arm = VllmArm(JOB)
    serve({"warm_up": arm.warm_up, "generate": arm.generate, "version": arm.version})
