"""Starts real vLLM 0.22.1 on a CPU and says which attention backend it took. Given material: nothing to edit here.

    .venv-vllm/bin/python real_cpu.py --model models/pocket --out FOLDER --arm forced

Arms
    default   nothing asked for
    forced    attention_backend="TRITON_ATTN"
    typo      attention_backend="FLASH_ATN"
    variable  the environment variable of older releases, VLLM_ATTENTION_BACKEND=TRITON_ATTN
"""

import argparse
import json
import os
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in this process
}
ARGUMENTS = {"forced": {"attention_backend": "TRITON_ATTN"}, "typo": {"attention_backend": "FLASH_ATN"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=["default", "forced", "typo", "variable"], default="default")
    args = parser.parse_args()
    os.environ.update(SETTINGS)
    if args.arm == "variable":
        os.environ["VLLM_ATTENTION_BACKEND"] = "TRITON_ATTN"
    from vllm import LLM

    result: dict[str, object] = {"arm": args.arm}
    try:
        llm = LLM(
            model=str(args.model), dtype="float32", enforce_eager=True, max_model_len=256, **ARGUMENTS.get(args.arm, {})
        )
        result["block_size"] = llm.llm_engine.vllm_config.cache_config.block_size
    except Exception as error:  # the arm "typo" must fail; its message is the result
        result["error"] = f"{type(error).__name__}: {error}"
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
