"""Start the real vLLM (CPU build) on models/pocket and keep the lines that say how large the KV cache is.

    .venv-vllm/bin/python phase-00-foundations/labs/lab-02-kv-memory-calculator/captured/capture.py MAX_MODEL_LEN

`course vllm` makes that environment. Prints `startup-MAX_MODEL_LEN.log`: 512 MiB of KV cache, blocks of 16, fp32.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

POCKET = Path(__file__).resolve().parents[4] / "models" / "pocket"
KEEP = ("Available KV cache", "GPU KV cache size", "Maximum concurrency", "num_gpu_blocks")
START = """
import sys
from vllm import LLM

if __name__ == "__main__":
    llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, block_size=16, max_num_seqs=32, seed=0,
              max_model_len=int(sys.argv[2]), kv_cache_memory_bytes=512 * 2**20)
    print("num_gpu_blocks", llm.llm_engine.vllm_config.cache_config.num_gpu_blocks)
"""


def main() -> int:
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TORCHDYNAMO_DISABLE": "1"}
    env = {**quiet, "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **os.environ}
    command = [sys.executable, "-c", START, str(POCKET), sys.argv[1]]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    kept = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines if any(word in line for word in KEEP)]
    print("\n".join(kept) if done.returncode == 0 else done.stderr[-3000:])
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
