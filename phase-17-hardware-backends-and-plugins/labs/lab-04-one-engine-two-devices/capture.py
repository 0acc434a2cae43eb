"""One engine on two devices: what differs, decision by decision. Writes DEVICE.npz and DEVICE.json.

    python capture.py --out FOLDER --device cuda

On a machine with an NVIDIA GPU, torch and Triton: two to four minutes. `--device torch` is the same code on a CPU.

1. Pocket in float64 on the CPU answers 24 questions and goes on from 24 random prompts, greedily. Each token is a
   *decision*, its gap the difference of the two best logits.
2. The device reads the same texts, prompt and answer, in several kinds of numbers, and says what it makes of each
   decision: the gap between the same two tokens, and which token it would have taken. Nothing parts here, since
   everybody reads the reference's text.
3. The device generates by itself, at each rung of its ladder: plans (tokens and block ids of each step) beside the
   CPU's, tokens beside the reference's, and output tokens per second (the median of three rounds
   on a GPU, one round on a CPU).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

POCKET = str(ROOT / "models" / "pocket")
STARTS = ("What is a {}?", "Explain {} in one sentence.", "Why does {} matter?", "{} and the scheduler:")
THINGS = ("KV block", "prefix cache", "draft model", "preemption", "CUDA graph", "queue")
TOKENS, TOP, ROUNDS = 48, 8, 3
NUMBERS = {"cuda": ("float32", "tf32", "float16", "bfloat16"), "torch": ("float32", "float16", "bfloat16")}
RUNGS = {
    "launched, waited for": {"enforce_eager": True, "async_scheduling": False},
    "launched, planned ahead": {"enforce_eager": True, "async_scheduling": True},
    "graphs, waited for": {"enforce_eager": False, "async_scheduling": False},
    "graphs, planned ahead": {"enforce_eager": False, "async_scheduling": True},
}


def make(device: str, dtype: str, num_blocks: int = 512, **settings: Any) -> Any:
    """An engine without a prefix cache, so that each run is like the first."""
    from mini_vllm import LLM

    return LLM(POCKET, device=device, dtype=dtype, num_blocks=num_blocks, enable_prefix_caching=False, **settings)


def prompts_of(llm: Any) -> dict[str, list[list[int]]]:
    """24 questions in the chat template of the model, and 24 times 8 to 40 random tokens."""
    tokenizer, rng = llm.get_tokenizer(), np.random.default_rng(0)
    questions = [[{"role": "user", "content": start.format(thing)}] for start in STARTS for thing in THINGS]
    text = [
        list(tokenizer.apply_chat_template(each, add_generation_prompt=True, return_dict=False)) for each in questions
    ]
    drawn = [[int(each) for each in rng.integers(300, 3300, int(rng.integers(8, 41)))] for _ in range(24)]
    return {"text": text, "random": drawn}


def generate(llm: Any, prompts: Sequence[list[int]], **settings: Any) -> list[Any]:
    """Greedy outputs."""
    from mini_vllm import SamplingParams

    params = SamplingParams(**{"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, **settings})
    return llm.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)


def decisions(llm: Any, prompts: list[list[int]], answers: list[list[int]]) -> list[list[dict[int, float]]]:
    """For each token of each answer what this engine made of it: its likeliest tokens and the one that stands there."""
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    found = []
    for prompt, output in zip(prompts, generate(llm, texts, max_tokens=1, prompt_logprobs=TOP), strict=True):
        rows = output.prompt_logprobs[len(prompt) :]
        found.append([{token: entry.logprob for token, entry in row.items()} for row in rows])
    return found


def best_two(row: dict[int, float]) -> list[int]:
    """The two likeliest tokens; of equals the one with the smaller id."""
    return sorted(row, key=lambda token: (-row[token], token))[:2]


def gaps(
    reference: list[list[dict[int, float]]], here: list[list[dict[int, float]]]
) -> tuple[list[float], list[bool], int]:
    """For each decision this device's gap between the reference's two best, and whether it takes another token.

    Third: how often the second of them was not among the `TOP` best here; its gap is that to the last of these then.
    """
    values, flips, lost = [], [], 0
    for ours, theirs in zip(reference, here, strict=True):
        for known, row in zip(ours, theirs, strict=True):
            first, second = best_two(known)
            lost += second not in row
            values.append(row[first] - row.get(second, min(row.values())))
            flips.append(best_two(row)[0] != first)
    return values, flips, lost


class Plans:
    """The plans of an engine's steps, as the scheduler made them: request -> (tokens, new block ids)."""

    def __init__(self, llm: Any) -> None:
        self.steps: list[dict[str, Any]] = []
        scheduler = llm.llm_engine.engine_core.scheduler
        schedule = scheduler.schedule

        def watched(*args: Any, **settings: Any) -> Any:
            plan = schedule(*args, **settings)
            cached = plan.scheduled_cached_reqs
            blocks = {each.req_id: each.block_ids for each in plan.scheduled_new_reqs}
            blocks.update(zip(cached.req_ids, cached.new_block_ids, strict=True))
            if plan.num_scheduled_tokens:
                counts = plan.num_scheduled_tokens
                self.steps.append({name: [counts[name], blocks.get(name)] for name in sorted(counts)})
            return plan

        scheduler.schedule = watched


def rung(
    device: str, dtype: str, settings: dict[str, Any], prompts: list[list[int]], known: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """One engine that generates by itself. known: `tokens` and `plans` of the reference."""
    begun = time.perf_counter()
    llm = make(device, dtype, **settings)
    plans = Plans(llm)
    outputs = generate(llm, prompts)
    first = time.perf_counter() - begun
    steps, tokens = list(plans.steps), [list(each.outputs[0].token_ids) for each in outputs]
    parted = [
        [i, next(at for at, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)]
        for i, (mine, theirs) in enumerate(zip(tokens, known["tokens"], strict=True))
        if mine != theirs
    ]
    rates = []
    for _ in range(rounds):
        begun = time.perf_counter()
        generate(llm, prompts, detokenize=False)
        rates.append(len(prompts) * TOKENS / (time.perf_counter() - begun))
    llm.llm_engine.shutdown()
    equal = sum(a == b for a, b in zip(steps, known["plans"], strict=False))
    return {
        "parted": parted, "steps": len(steps), "equal_plans": equal, "start_and_first_run_s": round(first, 2),
        "tokens_per_s": round(statistics.median(rates), 1),
    }  # fmt: skip


def provenance(device: str) -> dict[str, Any]:
    """Machine, versions, date."""
    import torch

    on_gpu = device == "cuda"
    return {
        "machine": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()}, {os.cpu_count()} cores",
        "device": device,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda if on_gpu else None,
                     "numpy": np.__version__, "python": platform.python_version()},
    }  # fmt: skip


def read_on(device: str, prompts: dict[str, list[list[int]]]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Parts 1 and 2: arrays for the npz, and a summary for each kind of text and of numbers."""
    import torch

    reference, arrays, rows = make("cpu", "float64"), dict[str, np.ndarray](), dict[str, Any]()
    known: dict[str, Any] = {}
    for kind, some in prompts.items():
        answers = [list(each.outputs[0].token_ids) for each in generate(reference, some, ignore_eos=kind == "random")]
        known[kind] = answers, decisions(reference, some, answers)
        own, flips, _ = gaps(known[kind][1], known[kind][1])
        assert not any(flips)
        arrays[f"{kind}/gaps"] = np.array(own)
        arrays[f"{kind}/lengths"] = np.array([len(each) for each in answers], np.int16)
    for name in NUMBERS[device]:
        llm = make(device, "float32" if name == "tf32" else name, enforce_eager=True)
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        for kind, some in prompts.items():
            answers, ours = known[kind]
            values, flips, lost = gaps(ours, decisions(llm, some, answers))
            arrays[f"{kind}/{name}"], arrays[f"{kind}/{name}/flips"] = np.array(values, np.float32), np.array(flips)
            errors = np.array(values) - arrays[f"{kind}/gaps"]
            rows[f"{kind}, {name}"] = row = {
                "rows": len(values), "flips": sum(flips), "ties": int(np.sum(np.array(values) == 0)), "lost": lost,
                "sd_of_gap_error": float(f"{errors.std():.3g}"), "largest": float(f"{np.abs(errors).max():.3g}"),
            }  # fmt: skip
            print(kind, name, row, flush=True)
        torch.backends.cuda.matmul.allow_tf32 = False
        llm.llm_engine.shutdown()
        del llm
    return arrays, rows


def run_by_itself(device: str, prompts: list[list[int]]) -> dict[str, Any]:
    """Part 3: a row a rung, beside the plans and tokens of the CPU."""
    on_cpu = make("cpu", "float64", async_scheduling=False)
    plans = Plans(on_cpu)
    tokens = [list(each.outputs[0].token_ids) for each in generate(on_cpu, prompts)]
    known = {"tokens": tokens, "plans": plans.steps}
    found: dict[str, Any] = {
        "requests": len(prompts), "tokens_each": TOKENS, "plans": len(plans.steps), "rungs": {},
    }  # fmt: skip
    rungs, rounds = (RUNGS, ROUNDS) if device == "cuda" else (dict(list(RUNGS.items())[:1]), 1)
    for dtype in ("float32", "bfloat16"):
        for name, settings in rungs.items():
            row = rung(device, dtype, settings, prompts, known, rounds)
            found["rungs"][f"{dtype}, {name}"] = row
            print(dtype, name, {**row, "parted": len(row["parted"])}, flush=True)
    return found


def main() -> None:
    """All three parts; what is done is written at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "torch"), default="cuda")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    prompts = prompts_of(make("cpu", "float64"))
    arrays, rows = read_on(args.device, prompts)
    np.savez_compressed(args.out / f"{args.device}.npz", **arrays)  # type: ignore[arg-type]
    found: dict[str, Any] = {"provenance": provenance(args.device), "numbers": rows}
    summary = args.out / f"{args.device}.json"
    summary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    found.update(run_by_itself(args.device, [*prompts["text"], *prompts["random"]]))
    summary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
