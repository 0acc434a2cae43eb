"""What drafts buy: `python -m benchmarks.spec_decode`.

pocket without drafts, with ngram, pocket-draft, pocket-eagle and pocket-medusa, greedy, on four kinds of prompts and
batches of 1, 8 and 32; with `--vllm-python` the CPU build of real vLLM too, with the same drafts. All engines are
loaded first and answer in turns, so that a slow minute of the machine is everybody's; a gain is the median of the
ratios of each turn, each engine against itself without drafts.

Beside the gain stands what the model of lab 08-04 makes of two measured numbers: E, tokens of a request in a step, and
the cost of a step. The cost comes from engines of their own, which make and verify the same drafts and reject all of
them (`rejection_sample_method="synthetic"`), so that they say the same text in as many steps as without drafts: cost is
their time over that. The model predicts E / cost; the last column is how far it is from the gain.
Writes results/spec_decode.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, machine, save, table
from benchmarks.turns import Arm, ArmError

MODEL = str(ROOT / "models" / "pocket")
METHODS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "draft_model": {"method": "draft_model", "model": f"{MODEL}-draft", "num_speculative_tokens": 3},
    "eagle": {"method": "eagle", "model": f"{MODEL}-eagle", "num_speculative_tokens": 3},
    "medusa": {"method": "medusa", "model": f"{MODEL}-medusa", "num_speculative_tokens": 3},
}
REJECTING = "all rejected"
_THINGS = ("lamp", "boat", "fox", "river", "clock", "garden", "tower", "bell")
_CITIES = ("Rome", "Oslo", "Cairo", "Lima", "Quito", "Kyoto", "Turin", "Delhi")


def prompts_of(kind: str, batch: int, turn: int) -> list[str]:
    """Texts of one kind, no two alike in a turn. "repeating": a question whose answer stands there twice already."""
    glossary = json.loads((ROOT / "models" / "training" / "glossary.json").read_text(encoding="utf-8"))
    asked = [(f"What is meant by {entry['term']}?", entry["answer"]) for entry in glossary]
    found = []
    for i in range(batch):
        n = i + turn * batch
        first, second = _THINGS[n % 8], _THINGS[(n // 8 + 3) % 8]
        line = f'{{"id": {n % 90 + 10}, "name": "{first}", "place": "{second}", "open": true}},\n'
        found.append({
            "repeating": f"{asked[n % len(asked)][0]}\n{asked[n % len(asked)][1]}\n" * 2 + asked[n % len(asked)][0],
            "glossary": asked[n % len(asked)][0],
            "json": f"Weather in {_CITIES[n % 8]} and in {_CITIES[(n // 8 + 3) % 8]} as JSON:\n" + line * 2,
            "story": f"Tell me a story about a {first} and a {second}.",
        }[kind])  # fmt: skip
    return found


KINDS = ("repeating", "glossary", "json", "story")


def start_arms(args: argparse.Namespace) -> dict[tuple[str, str], Arm]:
    """A process for each engine and method."""
    engines = {"mini_vllm": sys.executable, **({"vllm": args.vllm_python} if args.vllm_python else {})}
    common = {"model": MODEL, "max_num_seqs": max(args.batches), "max_tokens": args.max_tokens}
    jobs = {(engine, method): config for engine in engines for method, config in METHODS.items()}
    rejecting = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 1.0}
    for method, config in METHODS.items():
        if config is not None:
            jobs[f"{REJECTING}, mini_vllm", method] = {**config, **rejecting}
    arms = {}
    for (name, method), config in jobs.items():
        engine = name.rpartition(" ")[2]
        job = {**common, "engine": engine, "speculative_config": config}
        arms[name, method] = Arm("arm_spec_decode.py", job, args.threads, engines[engine])
    return arms


def measure(arms: dict[tuple[str, str], Arm], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every arm, kind and batch, in turns; the first turn does not count."""
    from mini_vllm.tokenizers.registry import load_tokenizer

    tokenizer, rows = load_tokenizer(MODEL), []
    for kind in KINDS:
        for batch in args.batches:
            for turn in range(args.repeats + 1):
                prompts = [tokenizer.encode(text) for text in prompts_of(kind, batch, turn)]
                told = {arm: process.ask("generate", prompts=prompts) for arm, process in arms.items()}
                if turn:
                    rows.append({"kind": kind, "batch": batch, "turn": turn, "arms": told})
    return rows


def ratios(rows: list[dict[str, Any]], engine: str, method: str, kind: str, batch: int) -> Iterator[dict[str, float]]:
    """Of each turn: gain, tokens of a request in a step, cost of a step, acceptance."""
    for row in rows:
        if (row["kind"], row["batch"]) != (kind, batch):
            continue
        plain, drafted = row["arms"][engine, "none"], row["arms"][engine, method]
        rejecting = row["arms"].get((f"{REJECTING}, {engine}", method))
        _, made, accepted = drafted["drafts"]
        yield {
            "gain": plain["seconds"] / drafted["seconds"],
            "tokens": plain["steps"] / drafted["steps"],
            "cost": rejecting["seconds"] / plain["seconds"] if rejecting else float("nan"),
            "accepted": accepted / made if made else 0.0,
            "same": float(plain["tokens"] == drafted["tokens"]),
        }


def report(rows: list[dict[str, Any]], args: argparse.Namespace, engines: list[str]) -> str:
    """The table."""
    lines: list[list[Any]] = []
    for kind in KINDS:
        for batch in args.batches:
            for engine in engines:
                for method in list(METHODS)[1:]:
                    found = list(ratios(rows, engine, method, kind, batch))
                    m = {name: statistics.median(each[name] for each in found) for name in found[0]}
                    told = [f"{m['accepted']:.0%}", f"{m['same']:.0%}", m["gain"], m["tokens"]]
                    known: list[Any] = [None] * 3
                    if m["cost"] == m["cost"]:
                        predicted = m["tokens"] / m["cost"]
                        known = [m["cost"], predicted, f"{predicted / m['gain'] - 1:+.1%}"]
                    lines.append([kind, batch, engine, method, *told, *known])
    header = ["prompts", "batch", "engine", "drafts", "accepted", "same tokens", "gain", "E", "cost", "E / cost", "off"]
    return table(header, lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vllm-python", default=None, help="a Python that has the CPU build of real vLLM")
    parser.add_argument("--quick", action="store_true", help="one small turn; nothing is written")
    args = parser.parse_args(argv)
    if args.quick:
        args.batches, args.repeats, args.max_tokens = [1, 2], 1, 24
    if args.vllm_python is None and (usual := Path(ROOT, ".venv-vllm/bin/python")).is_file():
        args.vllm_python = str(usual)
    arms = start_arms(args)
    try:
        rows = measure(arms, args)
    except ArmError as error:
        print(f"an engine did not answer: {error}", file=sys.stderr)
        return 1
    finally:
        for arm in arms.values():
            arm.close()
    engines = [engine for engine in dict.fromkeys(name for name, _ in arms) if not engine.startswith(REJECTING)]
    text = report(rows, args, engines)
    for row in rows:
        of_arms = {" ".join(arm): dict(told) for arm, told in row["arms"].items()}
        row["arms"] = {arm: {k: v for k, v in told.items() if k != "tokens"} for arm, told in of_arms.items()}
    save("spec_decode", {"machine": machine(), "settings": vars(args), "rows": rows}, text, keep=not args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
