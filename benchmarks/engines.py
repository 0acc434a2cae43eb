"""Output tokens per second of mini_vllm beside transformers, real vLLM on the CPU, and a bound; one run, one machine.

    python benchmarks/engines.py                    # pocket, its 704 variant, and the 0.5B shape; about half an hour
    python benchmarks/engines.py --quick            # pocket, fewer repeats, two batch sizes; about two minutes
    python benchmarks/engines.py --models pocket-704 --batches 1 8 32 64 --vllm-python .venv-vllm/bin/python

Each engine runs in a process of its own, after the one before has ended, with the same number of threads, the same
weights and the same prompts: greedy, `--prompt-len` tokens in, `--output-len` out, end-of-sequence ignored. Numbers are
medians. An arm that is not installed is left out with a note.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import ROOT, SHAPES, checkpoint, installed, limit_threads, machine, run_arm, save, table

ARMS = ("mini_vllm", "transformers", "vllm-eager", "vllm-compiled")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vllm-python", default=str(ROOT / ".venv-vllm" / "bin" / "python"))
    parser.add_argument("--workdir", type=Path, help="where random checkpoints are made (default: a temporary folder)")
    parser.add_argument("--name", default="engines", help="name of the result files")
    parser.add_argument(
        "--quick", action="store_true", help="pocket, batches 1 and 8, two repeats, 32 tokens out, nothing written"
    )
    args = parser.parse_args()
    if args.quick:
        models = ["pocket"] if args.models == list(SHAPES) else args.models
        args.models, args.batches, args.repeats, args.output_len = models, [1, 8], 2, 32
    return args


def make_job(shape: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What every arm is told. The 0.5B shape runs fewer and shorter batches: it is about bandwidth and memory."""
    large = shape.startswith("qwen")
    return {
        "model": str(folder),
        "batches": [b for b in args.batches if b <= 8] if large else args.batches,
        "prompt_len": args.prompt_len,
        "output_len": min(args.output_len, 32) if large else args.output_len,
        "repeats": min(args.repeats, 3) if large else args.repeats,
        "max_model_len": 1024,
        "kv_bytes": 256 << 20,
        "bandwidth": large,
        # Each rank copies its share of the weights, for which the memory goal of the large shape leaves no room.
        "processes": 1 if large else args.threads,
    }


def run_arms(job: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Result of each arm, or a string with the reason why there is none."""
    found: dict[str, Any] = {}
    for arm in args.arms:
        print(f"  {arm} ...", file=sys.stderr, flush=True)
        if arm == "mini_vllm":
            found[arm] = run_arm("arm_mini.py", job, args.threads)
        elif arm == "transformers":
            present = installed("torch", "transformers")
            found[arm] = run_arm("arm_transformers.py", job, args.threads) if present else "not installed"
        elif not Path(args.vllm_python).is_file():
            found[arm] = f"not installed: no {args.vllm_python} (`course vllm` makes it)"
        else:
            eager = {**job, "eager": arm == "vllm-eager"}
            found[arm] = run_arm("arm_vllm.py", eager, args.threads, args.vllm_python)
    return found


def rates(job: dict[str, Any], arms: dict[str, Any]) -> list[list[Any]]:
    """One row per batch size: tokens per second of each arm, the bound, and the ratios."""
    rows = []
    for batch in job["batches"]:
        tokens = batch * job["output_len"]
        rate = {arm: tokens / r["batches"][str(batch)]["seconds"] for arm, r in arms.items() if isinstance(r, dict)}
        mini, bound, products = rate.get("mini_vllm"), None, None
        if mini is not None:
            parts = arms["mini_vllm"]["batches"][str(batch)]["bound"]
            bound, products = tokens / parts["total"], tokens / parts["products_only"]
        ratios = [mini / other if mini and other else None for other in (bound, *map(rate.get, ARMS[1:]))]
        rows.append([batch, *map(rate.get, ARMS), bound, products, *ratios])
    return rows


def extra_lines(job: dict[str, Any], arms: dict[str, Any]) -> list[str]:
    """Memory, and where it was measured the share of the bandwidth bound; reasons of the arms that are missing."""
    lines = [f"- {arm}: {result}" for arm, result in arms.items() if isinstance(result, str)]
    lines += [f"- {arm}: {result['version']}" for arm, result in arms.items() if isinstance(result, dict)]
    mini = arms.get("mini_vllm")
    if not isinstance(mini, dict):
        return lines
    m = {key: value / 2**20 for key, value in mini["memory"].items()}
    used, allowed = m["peak"] - m["import"], 1.1 * m["weights"] + m["kv_pool"]
    lines.append(
        f"- memory of mini_vllm: {used:,.0f} MiB over a process that only imports it; fp32 weights {m['weights']:,.0f} "
        f"MiB, KV pool {m['kv_pool']:,.0f} MiB; 1.1 x weights + pool = {allowed:,.0f} MiB"
    )
    if mini["bandwidth"]:
        one = mini["batches"]["1"]
        prefill = one["bound"]["prefill_products"]
        step = (one["seconds"] - prefill) / (job["output_len"] - 1)
        limit = mini["memory"]["weights"] / mini["bandwidth"]
        speed = f"{mini['bandwidth'] / 1e9:.1f} GB/s (a matrix-vector product over 1 GiB)"
        lines.append(
            f"- decode at batch 1: {step * 1e3:.1f} ms per step; to read the weights once at {speed} takes "
            f"{limit * 1e3:.1f} ms: {limit / step:.0%} of that bound"
        )
    return lines


def main() -> None:
    """Run everything and write `results/engines.json` and `.md`."""
    args = parse_arguments()
    os.environ.update(limit_threads(args.threads, {}))
    result: dict[str, Any] = {
        "machine": machine(),
        "threads": args.threads,
        "command": " ".join(Path(word).name if os.sep in word else word for word in sys.argv[1:]),
        "models": {},
    }
    parts = [
        f"# Engines side by side\n\n{result['machine']}\n\n{args.threads} threads, {args.repeats} repeats, medians."
    ]
    header = ["batch", *ARMS, "bound", "products only", "mini / bound", *(f"mini / {arm}" for arm in ARMS[1:])]
    with tempfile.TemporaryDirectory() as temporary:
        for shape in args.models:
            folder, origin = checkpoint(shape, args.workdir or Path(temporary))
            print(f"{shape} ({origin})", file=sys.stderr, flush=True)
            job = make_job(shape, folder, args)
            arms = run_arms(job, args)
            rows = rates(job, arms)
            shown = {**job, "model": folder.name, "origin": origin}
            result["models"][shape] = {
                "job": shown,
                "arms": arms,
                "rows": [dict(zip(header, r, strict=True)) for r in rows],
            }
            title = f"## {shape} ({origin}): {job['prompt_len']} tokens in, {job['output_len']} out, output tokens/s"
            parts.append("\n\n".join([title, table(header, rows), "\n".join(extra_lines(job, arms))]))
    save(args.name, result, "\n\n".join(parts), keep=not args.quick)


if __name__ == "__main__":
    main()
