"""Profiles real vLLM 0.22.1 on an MoE model. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket-moe --out FOLDER --arm grouped

Arms
    grouped  CPU: all experts in one call of vLLM's grouped kernel
    loop     CPU: vLLM's other way, two matrix products for each expert that has tokens
    gpu      a CUDA card: the fused Triton kernel (moe_backend="triton"), bfloat16, CUDA graphs as they come

Which of the two CPU ways vLLM takes depends on processor and dtype. Here the arm decides, through two small patches:
`CPUFusedMOE.check_grouped_gemm` answers as the arm says, and the activation of the loop is the plain function (at this
release it builds a module that asks for the configuration, which a running step no longer has, and fails).

The engine runs inside this process: a profiler in the parent would see nothing of a child's work. What each operation
took by itself goes to FOLDER/result.json: [name, microseconds, calls].
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
OUTPUT_TOKENS = 32
PROMPTS = (
    "What is a KV block?",
    "Tell me a story about a fox.",
    "How much is 47 + 85?",
    "What is preemption?",
    "Tell me a joke.",
    "Why do we need a block table?",
    "Who are you?",
    "What is the difference between prefill and decode?",
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=["grouped", "loop", "gpu"], default="grouped")
    return parser.parse_args()


def patch_cpu(arm: str) -> None:
    """The arm's way through vLLM's CPU experts."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe

    def silu_and_mul(x):
        half = x.shape[-1] // 2
        return x[..., :half].sigmoid() * x[..., :half] * x[..., half:]

    way = (True, "vec") if arm == "grouped" else (False, "none")
    cpu_fused_moe.CPUFusedMOE.check_grouped_gemm = lambda self, layer: way
    cpu_fused_moe._CPU_MOE_ACT_FN[cpu_fused_moe.MoEActivation.SILU] = silu_and_mul


def make_llm(args: argparse.Namespace, traces: str):
    from vllm import LLM

    options: dict[str, Any] = {
        "max_model_len": 512,
        "seed": 0,
        "enable_prefix_caching": False,
        "max_num_seqs": len(PROMPTS),
    }
    if args.arm == "gpu":
        os.environ.pop("TORCHDYNAMO_DISABLE")
        options |= {"dtype": "bfloat16", "moe_backend": "triton", "gpu_memory_utilization": 0.6}
    else:
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        patch_cpu(args.arm)
        options |= {"dtype": "float32", "enforce_eager": True, "distributed_executor_backend": UniProcExecutor}
    profiler = {"profiler": "torch", "torch_profiler_dir": traces, "torch_profiler_with_stack": False}
    return LLM(model=args.model, profiler_config=profiler, **options), options


def profile_rows(llm, arm: str) -> list[list]:
    """What the worker's profiler saw: name, self time in microseconds, calls.

    On a GPU only what ran there: an operation on the CPU repeats the device time of the kernels that it launched.
    """
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    events = worker.profiler.profiler.key_averages()
    if arm == "gpu":
        kernels = [event for event in events if event.device_type.name == "CUDA" and not event.is_user_annotation]
        rows = [[event.key, round(event.self_device_time_total, 1), event.count] for event in kernels]
    else:
        rows = [[event.key, round(event.self_cpu_time_total, 1), event.count] for event in events]
    return sorted(rows, key=lambda row: -row[1])


def main() -> None:
    args = parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from vllm import SamplingParams, __version__

    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    prompts = list(PROMPTS)
    with tempfile.TemporaryDirectory() as traces:
        llm, options = make_llm(args, traces)
        llm.generate(prompts, params, use_tqdm=False)  # warm-up
        llm.start_profile()
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        llm.stop_profile()
        config = llm.llm_engine.model_config.hf_config
    options.pop("distributed_executor_backend", None)
    result = {
        "vllm": __version__,
        "arm": args.arm,
        "options": options,
        "seconds": round(seconds, 3),
        "num_layers": config.num_hidden_layers,
        "num_experts": getattr(config, "num_local_experts", None) or config.num_experts,
        "top_k": config.num_experts_per_tok,
        "num_steps": OUTPUT_TOKENS,
        "prompt_tokens": [len(output.prompt_token_ids) for output in outputs],
        "output_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "rows": profile_rows(llm, args.arm),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
