"""One arm: real vLLM's CPU build in this process, eager or compiled. Run by `engines.py` under that build's Python.

The engine core, the worker and the model live in the calling process (no messages between processes), which is the
fastest way on a CPU. Nothing of this repository but `make_prompts` is imported.
"""

from __future__ import annotations

import json
import os
import statistics
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


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Median seconds per batch size."""
    import torch
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from benchmarks.common import make_prompts

    llm = vllm.LLM(
        job["model"], dtype="float32", enforce_eager=job["eager"], skip_tokenizer_init=True, block_size=16,
        max_model_len=job["max_model_len"], max_num_seqs=max(job["batches"]), max_num_batched_tokens=2048,
        distributed_executor_backend=UniProcExecutor, disable_log_stats=True,
    )  # fmt: skip
    params = vllm.SamplingParams(temperature=0.0, max_tokens=job["output_len"], ignore_eos=True, detokenize=False)
    vocab_size = llm.llm_engine.model_config.get_vocab_size()

    def generate(batch: int, seed: int) -> float:
        prompts = make_prompts(batch, job["prompt_len"], vocab_size, seed)
        start = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        elapsed = time.perf_counter() - start
        assert sum(len(o.outputs[0].token_ids) for o in outputs) == batch * job["output_len"]
        return elapsed

    result = {}
    for batch in job["batches"]:
        for warmup in range(2):
            generate(batch, batch + 7919 * warmup)
        times = [generate(batch, 1000 * batch + repeat) for repeat in range(job["repeats"])]
        result[str(batch)] = {"seconds": statistics.median(times), "all": times}
    version = f"vllm {vllm.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    return {"batches": result, "version": version}


if __name__ == "__main__":
    print(json.dumps(measure(JOB)))
