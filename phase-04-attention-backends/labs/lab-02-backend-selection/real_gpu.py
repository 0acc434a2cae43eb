"""Starts real vLLM 0.22.1 on a GPU with several attention backends: its log lines, its refusals, its decode steps.

    python real_gpu.py --out FOLDER               about five minutes on an H200; needs the GPU build of vLLM

The model has the shape of Qwen3-0.6B and random weights (load_format="dummy"), so nothing is downloaded. Each arm runs
in a process of its own; its log goes to FOLDER/ARM.log, the lines about backends to gpu.log, figures to gpu.jsonl.
A decode step is timed as the difference of two calls: (1 + 64 tokens) minus 1 token, over 64; the median of three.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16", "attention_bias": False,
    "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
TIMED = ("default", "TRITON_ATTN", "FLEX_ATTENTION")
REFUSED = ("FLASHMLA", "FLASHINFER", "FLASH_ATN")
SHAPES = ((1, 128), (64, 128), (64, 4096), (1, 32000))
KEEP = re.compile(
    r"attention backend|\.\w+ backend\.|FlashAttention version|Selected backend|Unknown attention backend"
)


def arm(name: str, folder: Path) -> None:
    """One engine: what it chose, and how long its decode steps take. Runs in a process of its own."""
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    from vllm import LLM, SamplingParams

    wish = {} if name == "default" else {"attention_backend": name}
    llm = LLM(
        model=str(folder / "model"), load_format="dummy", skip_tokenizer_init=True, max_model_len=34_000,
        enable_prefix_caching=False, max_num_batched_tokens=8192, gpu_memory_utilization=0.8, **wish,
    )  # fmt: skip

    def seconds(batch: int, context: int, tokens: int) -> float:
        prompts = [{"prompt_token_ids": [7 + (i * 131 + j * 17) % 9000 for j in range(context)]} for i in range(batch)]
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    for batch, context in SHAPES:
        seconds(batch, context, 2)
        steps = sorted((seconds(batch, context, 65) - seconds(batch, context, 1)) / 64 * 1e3 for _ in range(3))
        row = {"arm": name, "batch": batch, "context": context, "ms_per_step": round(steps[1], 3)}
        with (folder / "gpu.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder for the results")
    parser.add_argument("--arm", help="one arm alone, in this process")
    args = parser.parse_args()
    if args.arm:
        return arm(args.arm, args.out)
    (args.out / "model").mkdir(parents=True, exist_ok=True)
    (args.out / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    kept = []
    for name in (*REFUSED, *TIMED):
        command = [sys.executable, __file__, "--out", str(args.out), "--arm", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
        (args.out / f"{name}.log").write_text(done.stdout, encoding="utf-8")
        lines = [re.sub(r"^\(\w+ pid=\d+\) ", "", line) for line in done.stdout.splitlines() if KEEP.search(line)]
        kept += [f"# {name}", *dict.fromkeys(line[:600] for line in lines)]
        (args.out / "gpu.log").write_text("\n".join(kept) + "\n", encoding="utf-8")
        print(name, done.returncode, flush=True)


if __name__ == "__main__":
    main()
