"""One arm: transformers' `generate`, greedy, float32, whole batch at once. Asked by `engines.py`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers


class TransformersArm:
    """The model of a job."""

    def __init__(self, job: dict[str, Any]) -> None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.job = job
        self.model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None

    def generate(self, batch: int, seed: int) -> float:
        """Seconds for a batch."""
        from benchmarks.common import make_prompts

        length = self.job["output_len"]
        ids = torch.tensor(make_prompts(batch, self.job["prompt_len"], self.model.config.vocab_size, seed))
        start = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length, min_new_tokens=length,
                pad_token_id=0,
            )  # fmt: skip
        elapsed = time.perf_counter() - start
        assert out.shape == (batch, self.job["prompt_len"] + length)
        return elapsed

    def warm_up(self, batch: int) -> None:
        """Run a batch."""
        self.generate(batch, batch)

    def version(self) -> str:
        """What a reader is told of this arm."""
        return f"transformers {transformers.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    from benchmarks.turns import serve

    arm = TransformersArm(json.loads(sys.argv[1]))
    serve({"warm_up": arm.warm_up, "generate": arm.generate, "version": arm.version})
