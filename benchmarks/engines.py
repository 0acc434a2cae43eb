"""Output tokens per second of mini_vllm beside transformers, real vLLM on the CPU, and a bound; one run, one machine.

    python benchmarks/engines.py                    # pocket, its 704 variant, and the 0.5B shape; about half an hour
    python benchmarks/engines.py --quick            # pocket, fewer repeats, two batch sizes; about two minutes
    python benchmarks/engines.py --models pocket-704 --batches 1 8 32 64 --vllm-python .venv-vllm/bin/python

Each engine runs in a process of its own, with the same number of threads, the same weights and the same prompts:
greedy, `--prompt-len` tokens in, `--output-len` out, end-of-sequence ignored. They are measured in turns, so that all
see the same machine. Numbers are medians; ratios, medians of those of each turn. An arm that is not installed is left
out with a note.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.common import ROOT, SHAPES, checkpoint, installed, limit_threads, machine, save, table
from benchmarks.turns import Arm, ArmError

ARMS = ("mini_vllm", "mini-plain", "transformers", "vllm-eager", "vllm-compiled")
REST = 0.2
"""Seconds between two turns: after its last product the threads of a BLAS look for more work for a while."""
_CONSOLE = Console(stderr=True)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
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
        "fill_pool": not large,
        "bandwidth": large,
        "processes": args.threads,
    }


def start(name: str, job: dict[str, Any], args: argparse.Namespace) -> Arm | str:
    """The arm's process, or a string with the reason why there is none."""
    try:
        if name in ("mini_vllm", "mini-plain"):
            return Arm("arm_mini.py", {**job, "eager": name == "mini-plain"}, args.threads)
        if name == "transformers":
            present = installed("torch", "transformers")
            return Arm("arm_transformers.py", job, args.threads) if present else "not installed"
        if not Path(args.vllm_python).is_file():
            return f"not installed: no {args.vllm_python} (`course vllm` makes it)"
        return Arm("arm_vllm.py", {**job, "eager": name == "vllm-eager"}, args.threads, args.vllm_python)
    except ArmError as error:
        return str(error)


def ask(arms: dict[str, Arm | str], found: dict[str, Any], name: str, do: str, **arguments: Any) -> Any:
    """An arm's answer; None from one that is missing. One that fails is closed and its reason kept in `found`."""
    arm = arms[name]
    if isinstance(arm, str):
        return None
    try:
        return arm.ask(do, **arguments)
    except ArmError as error:
        arm.close()
        arms[name] = found[name] = str(error)
        return None


def run_arms(job: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Result of each arm, or a string with the reason why there is none; all are measured in turns."""
    arms: dict[str, Arm | str] = {}
    found: dict[str, Any] = {}
    columns = TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=_CONSOLE, auto_refresh=False) as progress:  # nothing runs beside an arm
        task = progress.add_task("loading", total=len(args.arms) + len(job["batches"]) * job["repeats"])
        try:
            for name in args.arms:
                progress.update(task, description=f"loading {name}", refresh=True)
                arms[name] = arm = start(name, job, args)
                found[name] = arm if isinstance(arm, str) else {"batches": {}}
                warm_up(arms, found, name, job)
                progress.advance(task)
            for batch in job["batches"]:
                for repeat in range(job["repeats"]):
                    progress.update(task, description=f"batch {batch}", advance=1, refresh=True)
                    take_turns(arms, found, batch, 1000 * batch + repeat)
            for result in found.values():
                for measured in result["batches"].values() if isinstance(result, dict) else ():
                    summarize(measured)
            if job["batches"] and job["bandwidth"] and "mini_vllm" in arms:
                keep(found, "mini_vllm", bandwidth=ask(arms, found, "mini_vllm", "bandwidth"))
        finally:
            for arm in arms.values():
                if isinstance(arm, Arm):
                    arm.close()
    return found


def warm_up(arms: dict[str, Arm | str], found: dict[str, Any], name: str, job: dict[str, Any]) -> None:
    """Every batch size once, the largest last; what the arm says of itself."""
    memory = None
    for batch in sorted(job["batches"]):
        memory = ask(arms, found, name, "warm_up", batch=batch)
    keep(found, name, memory=memory, version=ask(arms, found, name, "version"))


def take_turns(arms: dict[str, Arm | str], found: dict[str, Any], batch: int, seed: int) -> None:
    """One measurement of every arm, after one that does not count (the turn before has filled the caches with other
    things), and of the bound."""
    for name in arms:
        questions: list[tuple[str, dict[str, int], str]] = [("generate", {"seed": seed}, "all")]
        if name == "mini_vllm":
            questions.append(("bound", {}, "bounds"))
        for do, arguments, where in questions:
            time.sleep(REST)
            if do == "generate":
                ask(arms, found, name, do, batch=batch, seed=seed + 500)
            answer = ask(arms, found, name, do, batch=batch, **arguments)
            if answer is not None:
                found[name]["batches"].setdefault(str(batch), {}).setdefault(where, []).append(answer)


def summarize(measured: dict[str, Any]) -> None:
    """Add the medians of what has been measured."""
    measured["seconds"] = statistics.median(measured["all"])
    if "bounds" in measured:
        keys = measured["bounds"][0]
        measured["bound"] = {key: statistics.median(b[key] for b in measured["bounds"]) for key in keys}


def keep(found: dict[str, Any], name: str, **facts: Any) -> None:
    """Add these facts to an arm's result, if it has one."""
    if isinstance(found[name], dict):
        found[name].update(facts)


def rates(job: dict[str, Any], arms: dict[str, Any]) -> list[list[Any]]:
    """One row per batch size: tokens per second of each arm, the bound, and the ratios.

    A ratio is the median of those of each turn, not the ratio of the medians: two measurements of one turn lie seconds
    apart.
    """
    rows = []
    for batch in job["batches"]:
        tokens = batch * job["output_len"]
        of_arm = {arm: r["batches"][str(batch)] for arm, r in arms.items() if isinstance(r, dict)}
        seconds = {arm: measured["all"] for arm, measured in of_arm.items()}
        rate = {arm: tokens / measured["seconds"] for arm, measured in of_arm.items()}
        bound, products = None, None
        if mini := of_arm.get("mini_vllm"):
            bound, products = tokens / mini["bound"]["total"], tokens / mini["bound"]["products_only"]
            seconds["bound"] = [b["total"] for b in mini["bounds"]]
        ratios = [paired_ratio(seconds, other) for other in ("bound", *ARMS[1:])]
        rows.append([batch, *map(rate.get, ARMS), bound, products, *ratios])
    return rows


def paired_ratio(seconds: dict[str, list[float]], other: str) -> float | None:
    """How many times as fast as `other` mini_vllm is."""
    if "mini_vllm" not in seconds or other not in seconds:
        return None
    return statistics.median(b / a for a, b in zip(seconds["mini_vllm"], seconds[other], strict=True))


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
    if mini.get("bandwidth"):
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
