"""What fewer bits cost and save: perplexity of pocket on held-out text, bytes in memory, tokens per second, by scheme.

    python benchmarks/quantization.py               # pocket, and memory and speed of the 0.5B shape; half an hour
    python benchmarks/quantization.py --no-speed    # perplexity and bytes alone
    python benchmarks/quantization.py --speed-only  # bytes and speed; the perplexities of the last results stay
    python benchmarks/quantization.py --quick       # pocket, few conversations, nothing written; a minute

Each scheme runs in a process of its own. Held-out text: conversations by the generator of pocket's training data, from
a seed that training never used; the tokens of the answers are scored, as on the model card (extra `hub` for the
tokenizer). "Same choice" is the share of them at which the likeliest token is that of float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import RESULTS, ROOT, SHAPES, machine, run_arm, save, table

HELD_OUT_SEED = 9_000_000
"""That of `TransformersEngine.held_out_loss` in models/training/engines.py."""
SCHEMES: dict[str, dict[str, Any]] = {
    "float32": {},
    "int8": {"quantization": "int8"},
    "fp8": {"quantization": "fp8"},
    "fp8, W8A8": {"quantization": "fp8", "quantization_config": {"activation_scheme": "dynamic"}},
    "int4, whole rows": {"quantization": "int4", "quantization_config": {"group_size": -1}},
    "int4, groups of 128": {"quantization": "int4"},
    "int4, groups of 32": {"quantization": "int4", "quantization_config": {"group_size": 32}},
    "nf4, blocks of 64": {"quantization": "nf4"},
    "nf4, double quantization": {"quantization": "nf4", "quantization_config": {"double_quant": True}},
    "float32, KV int8": {"kv_cache_dtype": "int8"},
    "float32, KV fp8": {"kv_cache_dtype": "fp8"},
    "int8, KV int8": {"quantization": "int8", "kv_cache_dtype": "int8"},
    "int4 (32), KV fp8": {"quantization": "int4", "quantization_config": {"group_size": 32}, "kv_cache_dtype": "fp8"},
}
LARGE = ("float32", "int8", "fp8", "int4, groups of 128", "nf4, blocks of 64")
"""Schemes for the 0.5B shape."""


def held_out(target: Path, conversations: int) -> int:
    """Write token ids, lengths and what to score; returns the number of tokens to score."""
    from models.training.chat_format import CLASS_ANSWER, CLASS_PAD
    from models.training.dataset import make_shard

    shard = make_shard(HELD_OUT_SEED, str(ROOT / "models" / "pocket" / "tokenizer.json"), conversations)
    ids, lengths, scored = [], [], []
    for rows in shard.values():
        for row, classes in zip(rows.ids, rows.classes, strict=True):
            length = int((classes != CLASS_PAD).sum())
            ids.append(row[:length].astype(np.int64))
            scored.append((classes[:length] == CLASS_ANSWER) & (np.arange(length) > 0))
            lengths.append(length)
    np.savez(target, ids=np.concatenate(ids), lengths=np.array(lengths), scored=np.concatenate(scored))
    return int(np.concatenate(scored).sum())


def run(model: Path, schemes: dict[str, dict[str, Any]], job: dict[str, Any], threads: int) -> dict[str, Any]:
    """Result of each scheme, or a string with the reason why there is none."""
    found: dict[str, Any] = {}
    exact = None  # what the first scheme chose
    for name, engine in schemes.items():
        print(f"  {name} ...", file=sys.stderr, flush=True)
        engine = {"kv_cache_memory_bytes": job["kv_bytes"], "max_num_seqs": 64, "max_model_len": 1024, **engine}
        with tempfile.TemporaryDirectory() as scratch:
            choices = str(Path(scratch) / "choices.npy")
            arm = {**job, "model": str(model), "engine": engine, "choices": choices}
            found[name] = result = run_arm("arm_quantization.py", arm, threads)
            if job["text"] and isinstance(result, dict):
                own = np.load(choices)
                exact = own if exact is None else exact
                result["same_choice"] = float((own == exact).mean())
    return found


def report(found: dict[str, Any], batches: list[int], quality: bool) -> str:
    """The table of one model; bytes in MiB."""
    header = ["scheme", "weights, MiB", "resident, MiB", "KV bytes per token", "tokens that fit"]
    header += ["nats per token", "perplexity", "same choice"] if quality else []
    header += [f"tokens/s, batch {batch}" for batch in batches]
    rows, notes = [], []
    for name, result in found.items():
        if isinstance(result, str):
            notes.append(f"- {name}: {result}")
            continue
        row = [name, result["weights"] / 2**20, result["resident"] / 2**20, f"{result['kv_bytes_per_token']:,}"]
        row.append(f"{result['kv_tokens']:,}")
        if quality:
            row += [f"{result['nats']:.5f}", f"{result['perplexity']:.5f}", f"{result['same_choice']:.2%}"]
        rows.append([*row, *(result["tokens_per_second"].get(str(batch)) for batch in batches)])
    return "\n".join([table(header, rows), *notes])


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=1500)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="quantization")
    parser.add_argument("--no-speed", action="store_true", help="perplexity and bytes alone")
    parser.add_argument("--speed-only", action="store_true", help="keep the perplexities of the last results")
    parser.add_argument("--no-large", action="store_true", help="pocket alone")
    parser.add_argument("--quick", action="store_true", help="20 conversations of pocket, one repeat, nothing written")
    args = parser.parse_args()
    if args.quick:
        args.conversations, args.batches, args.repeats, args.no_large = 20, [1], 1, True
    args.batches = [] if args.no_speed else args.batches
    return args


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Everything that the results hold."""
    facts, before = machine(), {}
    if args.speed_only:
        before = json.loads((RESULTS / f"{args.name}.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        text = None if args.speed_only else Path(scratch) / "held-out.npz"
        job = {"text": text and str(text), "batches": args.batches, "prompt_len": 64, "output_len": 64,
               "repeats": args.repeats, "kv_bytes": 64 << 20}  # fmt: skip
        scored = before["scored"] if text is None else held_out(text, args.conversations)
        pocket = run(ROOT / "models" / "pocket", SCHEMES, job, args.threads)
        large = before.get("qwen2.5-0.5b", {}) if args.no_large else run_large(Path(scratch), job, args.threads)
    for name, result in pocket.items():
        if args.speed_only and isinstance(result, dict):
            result |= {key: before["pocket"][name][key] for key in ("nats", "perplexity", "same_choice")}
    return {
        "machine": facts, "conversations": before.get("conversations", args.conversations), "scored": scored,
        "pocket": pocket, "qwen2.5-0.5b": large,
    }  # fmt: skip


def write(result: dict[str, Any], args: argparse.Namespace) -> None:
    """`results/quantization.json` and `.md`."""
    runs = f"{args.threads} threads, 64 tokens in, 64 out, medians of {args.repeats}."
    parts = [
        f"# Quantization\n\n{result['machine']}",
        '"Weights" is counted array by array, float32 embeddings included; "resident" is what the process grew by '
        "while the engine was made: weights, tokenizer, tables, but of the KV cache no page, as none is written yet.",
        f"## pocket\n\n{result['scored']:,} answer tokens of {result['conversations']} held-out conversations (seed "
        f"{HELD_OUT_SEED}); KV cache of 64 MiB. {runs if args.batches else ''}",
        report(result["pocket"], args.batches, quality=True),
    ]
    if result["qwen2.5-0.5b"]:
        parts.append("## The shape of Qwen2.5-0.5B, random weights\n\n64 tokens in, 16 out.")
        parts.append(report(result["qwen2.5-0.5b"], [b for b in args.batches if b <= 8], quality=False))
    save(args.name, result, "\n\n".join(parts), keep=not args.quick)


def main() -> None:
    """All schemes of pocket, some of the 0.5B shape."""
    args = parse_arguments()
    write(measure(args), args)


def run_large(scratch: Path, job: dict[str, Any], threads: int) -> dict[str, Any]:
    """The 0.5B shape, stored in bf16; no perplexity, which random weights do not have."""
    from mini_vllm import save_random_checkpoint

    folder = save_random_checkpoint(scratch / "large", SHAPES["qwen2.5-0.5b"], std=0.03, dtype="BF16")
    batches = [batch for batch in job["batches"] if batch <= 8]
    job = {**job, "text": None, "batches": batches, "output_len": 16, "repeats": min(job["repeats"], 2)}
    return run(folder, {name: SCHEMES[name] for name in LARGE}, job, threads)


if __name__ == "__main__":
    main()
