"""Runs real vLLM 0.22.1 on one checkpoint, alone or cut over two workers. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --tp 2

Four questions, all in one call, greedy, in float32; beside each answer by how much the likeliest token led the second
at each place. On a CPU a "device" is a process: each worker has a cache of 1 GiB. What the engine prints goes to stdout
and stderr; the figures go to FOLDER/result.json. `--device cuda` runs the same on GPUs.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
ON_CPU |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
QUESTIONS = ("What is a KV block?", "Tell me a story about a fox.", "What is 20 + 3?", "Tell me a joke.")
MAX_TOKENS = 32


def processes() -> list[str]:
    """Names of the processes below this one, as `ps` shows them, in the order of their start."""
    rows = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()[1:]
    parents = {int(row.split()[0]): (int(row.split()[1]), row.split(None, 2)[2]) for row in rows}
    found = []
    for pid in sorted(parents):
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above][0]
        if above == os.getpid() and "VLLM::" in parents[pid][1]:
            found.append(parents[pid][1].strip())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    for key, value in {**SETTINGS, **(ON_CPU if args.device == "cpu" else {})}.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, SamplingParams, __version__

    options = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 2048, "block_size": 16, "seed": 0,
        "tensor_parallel_size": args.tp,
    }  # fmt: skip
    if args.device == "cuda":
        options["gpu_memory_utilization"] = 0.2
    llm = LLM(model=args.model, distributed_executor_backend="mp", **options)
    names, config = processes(), llm.llm_engine.vllm_config
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=2)
    answers = []
    for question, out in zip(
        QUESTIONS, llm.chat([[{"role": "user", "content": q}] for q in QUESTIONS], params), strict=True
    ):
        best = [sorted((each.logprob for each in place.values()), reverse=True) for place in out.outputs[0].logprobs]
        answers.append({
            "question": question, "token_ids": list(out.outputs[0].token_ids), "text": out.outputs[0].text,
            "margins": [round(place[0] - place[1], 5) for place in best],
        })  # fmt: skip
    result = {
        "vllm": __version__, "device": args.device, "tp": args.tp, "options": options, "processes": names,
        "block_size": config.cache_config.block_size, "num_blocks": config.cache_config.num_gpu_blocks,
        "answers": answers,
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":  # vLLM may start processes of its own, which import this file again
    main()
