"""Records what real vLLM 0.22.1 pools, for `tests/pool/test_golden.py` to compare.

Run from the repository root under the CPU build of the pinned release (`course vllm`), one engine a process:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_pooling.py [FAMILY ...]

A family that the CPU build cannot run is left out, and named in `failed`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mini_vllm.tests.golden.packed import read_packed, write_packed
from mini_vllm.tests.models.pooling_checkpoints import FAMILIES, TASKS, engine_args, prompts, save_family

HERE = Path(__file__).resolve().parent
FILE = HERE / "pooling.json.xz"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}  # fmt: skip


def record(family: str) -> dict[str, Any]:
    """The chief task of a family, on all prompts; other tasks need another `PoolerConfig` there."""
    os.environ.update(ENVIRONMENT)
    import vllm.utils.torch_utils as torch_utils
    from vllm import LLM, PoolingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    torch_utils.async_tensor_h2d.__defaults__ = (False,)
    with tempfile.TemporaryDirectory() as folder:
        args: dict[str, Any] = {"runner": "pooling", **engine_args(family)}
        llm = LLM(
            str(save_family(family, Path(folder))), dtype="float32", enforce_eager=True, max_model_len=64,
            max_num_seqs=8, max_num_batched_tokens=256, tokenizer="models/pocket",
            distributed_executor_backend=UniProcExecutor, **args,
        )  # fmt: skip
        task = TASKS[family][0]
        params = PoolingParams(step_tag_id=7) if "process" in family else PoolingParams()
        given = [{"prompt_token_ids": ids} for ids in prompts()]
        outputs = llm.encode(given, params, pooling_task=task, use_tqdm=False)
        return {"task": task, "data": [output.outputs.data.float().tolist() for output in outputs]}


def main() -> None:
    """All families, each in a child; results are joined to those that are there."""
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        print("RESULT" + json.dumps(record(sys.argv[2])))
        return
    kept = read_packed(FILE) if FILE.is_file() else {"families": {}, "failed": {}}
    for family in sys.argv[1:] or FAMILIES:
        command = [sys.executable, __file__, "--child", family]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        line = next((row for row in done.stdout.splitlines() if row.startswith("RESULT")), None)
        kept["failed"].pop(family, None)
        if line is None:
            kept["failed"][family] = done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else "no output"
        else:
            kept["families"][family] = json.loads(line.removeprefix("RESULT"))
        print(family, "failed: " + kept["failed"][family] if line is None else "ok", flush=True)
        kept["provenance"] = {
            "vllm": "0.22.1", "device": "CPU", "python": platform.python_version(),
            "command": "mini_vllm/tests/golden/record_pooling.py",
        }  # fmt: skip
        write_packed(FILE, kept)


if __name__ == "__main__":
    main()
