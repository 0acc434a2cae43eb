"""One arm: mini_vllm, and the bound in the same process, the two measured in turns. Asked by `engines.py`."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mini_vllm
from mini_vllm import LLM, Checkpoint, SamplingParams, load_model


def proc_bytes(file: str, field: str) -> int:
    """A size from a file below /proc; 0 where the system has none."""
    path = Path("/proc", file)
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def peak_bytes() -> int:
    """Largest resident size of this process so far. (`ru_maxrss` would start at the parent's.)"""
    if known := proc_bytes("self/status", "VmHWM"):
        return known
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def bytes_of_all_ranks() -> int:
    """Resident bytes of this process and its workers now; a page that several share counts once."""
    pids = os.getpid(), *(worker.pid for worker in multiprocessing.active_children())
    return sum(proc_bytes(f"{pid}/smaps_rollup", "Pss") for pid in pids)


class MiniArm:
    """The engine of a job, its bound, and what it takes in memory."""

    def __init__(self, job: dict[str, Any]) -> None:
        assert mini_vllm.LLM is LLM
        self.job, self.imported = job, peak_bytes()
        self.params = SamplingParams(temperature=0.0, max_tokens=job["output_len"], ignore_eos=True, detokenize=False)
        self.llm = LLM(
            job["model"], kv_cache_memory_bytes=job["kv_bytes"], max_num_seqs=max(job["batches"]),
            max_model_len=job["max_model_len"], tensor_parallel_size=job.get("processes", 1),
            enforce_eager=job.get("eager", False),
        )  # fmt: skip
        self.model: Any = self.llm.llm_engine.model
        self._bounds: list[Any] = []

    def warm_up(self, batch: int) -> dict[str, int]:
        """Run a batch, and again until every block of the pool has been used (a block's memory comes from the system
        when it is first written); the bytes of memory at the peak of this process or, where that is more, of all ranks
        together now, before anything else is loaded."""
        core, length = self.llm.llm_engine.engine_core, self.job["prompt_len"] + self.job["output_len"]
        blocks = batch * -(-length // core.config.block_size)
        rounds = -(-core.num_blocks // blocks) if self.job.get("fill_pool") and batch == max(self.job["batches"]) else 1
        for round_ in range(rounds):
            self.generate(batch, batch + 7919 * round_)
        with Checkpoint(self.job["model"]) as checkpoint:
            numbers = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())
        return {
            "import": self.imported,
            "peak": max(peak_bytes(), bytes_of_all_ranks()),
            "weights": numbers * self.model.dtype.itemsize,
            "kv_pool": self.job["kv_bytes"],
        }

    def generate(self, batch: int, seed: int) -> float:
        """Seconds for a batch."""
        from benchmarks.common import make_prompts

        prompts = make_prompts(batch, self.job["prompt_len"], self.model.vocab_size, seed)
        start = time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompts], self.params, use_tqdm=False)
        elapsed = time.perf_counter() - start
        assert sum(len(o.outputs[0].token_ids) for o in outputs) == batch * self.job["output_len"]
        return elapsed

    def bound(self, batch: int) -> dict[str, float]:
        """The parts of the bound, in seconds, of whichever use of the cores is faster in all."""
        from benchmarks.bound import Bound, BoundOfRanks, time_of

        question = batch, self.job["prompt_len"], self.job["output_len"], 21
        processes = self.job.get("processes", 1)
        if not self._bounds:
            self._bounds = [Bound(load_model(self.job["model"]))]
            self._bounds += [BoundOfRanks(self.job["model"], processes)] if processes > 1 else []
        found = [time_of(bound.parts(*question), self.job["output_len"]) for bound in self._bounds]
        return min(found, key=lambda parts: parts["total"])

    def bandwidth(self) -> float:
        """Bytes per second of a matrix-vector product."""
        from benchmarks.bound import matvec_bandwidth

        return matvec_bandwidth()

    def version(self) -> str:
        """What a reader is told of this arm."""
        form = ", enforce_eager" if self.job.get("eager") else ""
        return f"this repository, tensor_parallel_size={self.job.get('processes', 1)}{form}"


if __name__ == "__main__":
    from benchmarks.turns import serve

    arm = MiniArm(json.loads(sys.argv[1]))
    names = ("warm_up", "generate", "bound", "bandwidth", "version")
    serve({name: getattr(arm, name) for name in names})
