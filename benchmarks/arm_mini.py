"""One arm: mini_vllm, and the bound in the same process, the two measured in turns. Run by `engines.py`."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mini_vllm
from mini_vllm import LLM, SamplingParams


def peak_bytes() -> int:
    """Largest resident size of this process so far. (`ru_maxrss` would start at the parent's.)"""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Median seconds per batch size, tokens included, with the bound beside it; peak memory before the bound runs."""
    from benchmarks.common import make_prompts

    assert mini_vllm.LLM is LLM
    imported = peak_bytes()
    params = SamplingParams(temperature=0.0, max_tokens=job["output_len"], ignore_eos=True, detokenize=False)
    engine_args = {
        "kv_cache_memory_bytes": job["kv_bytes"], "max_num_seqs": max(job["batches"]),
        "tensor_parallel_size": job.get("processes", 1),
    }  # fmt: skip
    llm = LLM(job["model"], **engine_args, max_model_len=job["max_model_len"])
    model = llm.llm_engine.model

    def generate(batch: int, seed: int) -> float:
        prompts = make_prompts(batch, job["prompt_len"], model.vocab_size, seed)
        start = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        elapsed = time.perf_counter() - start
        assert sum(len(o.outputs[0].token_ids) for o in outputs) == batch * job["output_len"]
        return elapsed

    for batch in job["batches"]:
        generate(batch, batch)  # warm up, and reach the peak before anything else is loaded
    weights = model.num_parameters * model.dtype.itemsize
    memory = {"import": imported, "peak": peak_bytes(), "weights": weights, "kv_pool": job["kv_bytes"]}
    from benchmarks.bound import Bound, matvec_bandwidth

    bound, result = Bound(model), {}
    for batch in job["batches"]:
        times, bounds = [], []
        for repeat in range(job["repeats"]):
            bounds.append(bound.time(batch, job["prompt_len"], job["output_len"], 21))
            time.sleep(0.2)  # after the bound's last product BLAS's threads look for work for a while, on our cores
            times.append(generate(batch, 1000 * batch + repeat))
        keys = bounds[0]
        parts = {key: statistics.median(b[key] for b in bounds) for key in keys}
        result[str(batch)] = {"seconds": statistics.median(times), "all": times, "bound": parts}
    bandwidth = matvec_bandwidth() if job["bandwidth"] else None
    return {
        "batches": result,
        "memory": memory,
        "bandwidth": bandwidth,
        "version": f"this repository, tensor_parallel_size={job.get('processes', 1)}",
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
