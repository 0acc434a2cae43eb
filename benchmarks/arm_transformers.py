"""One arm: transformers' `generate`, greedy, float32, whole batch at once. Run by `engines.py`."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Median seconds per batch size."""
    from benchmarks.common import make_prompts

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    length = job["output_len"]

    def generate(batch: int, seed: int) -> float:
        ids = torch.tensor(make_prompts(batch, job["prompt_len"], model.config.vocab_size, seed))
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length, min_new_tokens=length,
                pad_token_id=0,
            )  # fmt: skip
        elapsed = time.perf_counter() - start
        assert out.shape == (batch, job["prompt_len"] + length)
        return elapsed

    result = {}
    for batch in job["batches"]:
        generate(batch, batch)
        times = [generate(batch, 1000 * batch + repeat) for repeat in range(job["repeats"])]
        result[str(batch)] = {"seconds": statistics.median(times), "all": times}
    return {"batches": result, "version": f"transformers {transformers.__version__}, torch {torch.__version__}"}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
