"""Runs real vLLM 0.22.1 on one checkpoint in one arm and writes what it stored, chose and answered. Given material.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --arm fp32

Arms
    fp32, bf16           the float checkpoint, computed in this type
    fp32-w8a8            a checkpoint made by make_checkpoint.py --scheme w8a8
    bf16-w4a16, -g32     the same with --scheme w4a16 or w4a16-g32; the CPU kernel knows bf16 and fp16, not fp32
    bf16-kv-fp8          float weights, K and V stored as fp8
    bf16-online-fp8      quantization="fp8": fails on a CPU, and the log says where
    bf16-kv-int8         kv_cache_dtype="int8_per_token_head": sized, then refused by the CPU's attention

Figures go to FOLDER/result.json; an arm that fails leaves the error there.
"""

import argparse
import json
import lzma
import os
from pathlib import Path
from typing import Any

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in this process, so that its weights can be counted
}
ARMS: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": "float32"},
    "fp32-w8a8": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "bf16-w4a16": {"dtype": "bfloat16"},
    "bf16-w4a16-g32": {"dtype": "bfloat16"},
    "bf16-kv-fp8": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    "bf16-online-fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "bf16-kv-int8": {"dtype": "bfloat16", "kv_cache_dtype": "int8_per_token_head"},
}
TEXTS = Path(__file__).with_name("captured") / "texts.json.xz"
"""Conversations that the checkpoint was not trained on, as token ids; made by capture.py."""
QUESTIONS = (
    "What is a KV block?",
    "What is preemption?",
    "What is chunked prefill?",
    "What is the token budget?",
    "What is prefix caching?",
    "What is a scheduler?",
    "What is quantization?",
    "What is a kernel?",
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=ARMS, default="fp32")
    return parser.parse_args()


def stored(model: Any) -> list[dict[str, Any]]:
    """Parameters of the first layer's projections, as they are after loading. Emptied ones live inside a kernel."""
    rows = []
    for name, tensor in model.named_parameters():
        if "layers.0." in name and "_proj." in name:
            rows.append({"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")})
    return rows


def score(llm: Any, texts: list[list[int]]) -> list[dict[str, Any]]:
    """Per text: its predicted tokens (all but the first) and the sum of their log-probabilities."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    rows = []
    for output in llm.generate([{"prompt_token_ids": text} for text in texts], params, use_tqdm=False):
        pairs = list(zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True))
        total = sum(entry[token].logprob for token, entry in pairs)
        rows.append({"tokens": len(pairs), "logprob": round(total, 4)})
    return rows


def answers(llm: Any) -> list[dict[str, Any]]:
    """Greedy answers to the questions: prompt and output token ids, and the text."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=48)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    rows = []
    for output in llm.chat(chats, params, use_tqdm=False):
        made = output.outputs[0]
        rows.append({"prompt": list(output.prompt_token_ids), "token_ids": list(made.token_ids), "text": made.text})
    return rows


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Start the engine, count, answer, score."""
    from vllm import LLM, __version__
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = {"enforce_eager": True, "max_model_len": 1024, "seed": 0, "block_size": 32, "max_num_seqs": 8}
    options |= {"max_num_batched_tokens": 1024, **ARMS[args.arm]}
    result: dict[str, Any] = {"vllm": __version__, "arm": args.arm, "options": options}
    try:
        llm = LLM(model=args.model, distributed_executor_backend=UniProcExecutor, **options)
        engine = llm.llm_engine
        model = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model
        cache = engine.vllm_config.cache_config
        result |= {"num_gpu_blocks": cache.num_gpu_blocks, "block_size": cache.block_size, "stored": stored(model)}
        result["answers"] = answers(llm)
        own = [row["prompt"] + row["token_ids"] for row in result["answers"]]
        result["own_answers"] = score(llm, own)
        result["held_out"] = score(llm, json.loads(lzma.decompress(TEXTS.read_bytes())))
    except (RuntimeError, NotImplementedError, ValueError) as error:
        result["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return result


def main() -> None:
    """Run one arm."""
    args = parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    result = measure(args)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
