"""The whole engine on a GPU: nano-vllm's workload, and decode steps by batch size, on the shape of Qwen3-0.6B.

    python -m benchmarks.gpu.engine --out FILE [--model FOLDER] [--repeats 3] [--eager] [--waiting]

256 requests of 100 to 1,024 random ids in and 100 to 1,024 out, temperature 0.6, no end token, no text; weights are
random, of the shape that a config names (`--model` makes the folder where it is missing). Decode steps: requests of 512
ids, median of the steps after the first ones. What the first token costs is told from the start of the process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from random import Random
from typing import Any

import torch

STARTED = time.perf_counter()
QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "rope_theta": 1e6, "bos_token_id": 151643, "eos_token_id": 151645, "torch_dtype": "bfloat16",
}  # fmt: skip


def make_llm(folder: str, **args: Any) -> Any:
    """The engine on the GPU; the checkpoint is written first where it is missing."""
    from mini_vllm import LLM
    from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint

    if not (Path(folder) / "config.json").is_file():
        save_random_checkpoint(folder, QWEN3_0_6B, std=0.02, dtype="BF16")
    settings = {"max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 16384, "dtype": "bfloat16"}
    return LLM(folder, device="cuda", skip_tokenizer_init=True, **{**settings, **args})


def workload(repeats: int, llm: Any) -> list[dict[str, float]]:
    """Output tokens per second, `repeats` times, each from an empty prefix cache."""
    from mini_vllm import SamplingParams

    rng = Random(0)
    ids = [[rng.randint(0, 10000) for _ in range(rng.randint(100, 1024))] for _ in range(256)]
    params = [
        SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=rng.randint(100, 1024), detokenize=False)
        for _ in range(256)
    ]
    prompts, results = [{"prompt_token_ids": each} for each in ids], []
    for _ in range(repeats):
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(o.outputs[0].token_ids) for o in outputs)
        assert tokens == sum(p.max_tokens for p in params)
        results.append({"tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds})
        print(json.dumps(results[-1]), flush=True)
        llm.reset_prefix_cache()
    return results


def decode_steps(llm: Any, sizes: list[int], steps: int = 60) -> dict[int, float]:
    """Milliseconds of a decode step, by batch size: time of a run over its steps, prompts left out."""
    from mini_vllm import SamplingParams

    rng, found = Random(1), {}
    for size in sizes:
        prompts = [{"prompt_token_ids": [rng.randint(0, 10000) for _ in range(512)]} for _ in range(size)]
        times = []
        for _ in range(3):
            took = []
            for count in (8, 8 + steps):
                params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=count, detokenize=False)
                start = time.perf_counter()
                llm.generate(prompts, params, use_tqdm=False)
                took.append(time.perf_counter() - start)
                llm.reset_prefix_cache()
            times.append((took[1] - took[0]) / steps * 1e3)
        found[size] = statistics.median(times)
        print(f"decode, batch {size}: {found[size]:.2f} ms a step", flush=True)
    return found


def main() -> None:
    """Run it, and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default="/tmp/qwen3-0.6b-shape")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--eager", action="store_true", help="no graphs: every kernel is launched")
    parser.add_argument(
        "--waiting", action="store_true", help="a step is planned when the tokens of the last are known"
    )
    args = parser.parse_args()
    from mini_vllm import SamplingParams

    begun = time.perf_counter()
    llm = make_llm(args.model, enforce_eager=args.eager, async_scheduling=not args.waiting)
    loaded = time.perf_counter()
    llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
    first = time.perf_counter()
    print(
        f"imports {begun - STARTED:.1f} s, loaded {loaded - begun:.1f} s, first token {first - loaded:.2f} s",
        flush=True,
    )
    result = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "eager": args.eager,
        "waiting": args.waiting,
        "load_seconds": loaded - begun, "first_token_seconds": first - loaded,
        "decode_ms": decode_steps(llm, [1, 8, 64, 256]), "workload": workload(args.repeats, llm),
    }  # fmt: skip
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
