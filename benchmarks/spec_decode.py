"""What drafts buy: `python -m benchmarks.spec_decode`.

pocket without drafts, with ngram, with pocket-draft, with pocket-eagle and with pocket-medusa;
greedy, on four kinds of prompts and batches of 1, 8 and 32; with `--vllm-python` the CPU build of real vLLM too, with
the same drafts. All engines are loaded first, one after the other, real vLLM's before ours since it compiles for up to
a minute; then they answer in turns, so that a slow minute of the machine is everybody's; a gain is the median of the
ratios of each turn, each engine against itself without drafts. "switched" is the gain with `disable_when_slower`. Turns
go on until `--minutes` are over, the loading counted in; one turn that counts there is always. With `--processor-time`
what the engines compute is timed, by one thread, and other processes matter less; nothing is written then.

Beside the gain stands what the model of lab 08-04 makes of two measured numbers: E, tokens of a request in a step, and
the cost of a step. The cost comes from engines of their own, which make and verify the same drafts and reject all of
them (`rejection_sample_method="synthetic"`), so that they say the same text in as many steps as without drafts: cost is
their time over that. The model predicts E / cost; the last column is how far it is from the gain. Below the table stand
the goals, and whether they are met.
Writes results/spec_decode.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
import sys
import time
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
    "eagle": {"method": "eagle", "model": f"{MODEL}-eagle", "num_speculative_tokens": 5},
    "medusa": {"method": "medusa", "model": f"{MODEL}-medusa", "num_speculative_tokens": 3},
}
REJECTING, SWITCHED = "all rejected", "switched"
_REJECTING_TURNS = 2
_THINGS = ("lamp", "boat", "fox", "river", "clock", "garden", "tower", "bell")
_CITIES = ("Rome", "Oslo", "Cairo", "Lima", "Quito", "Kyoto", "Turin", "Delhi")


def prompts_of(kind: str, batch: int, turn: int) -> list[str]:
    """Texts of one kind, no two alike in a turn. "repeating": a question whose answer stands there twice already."""
    glossary = json.loads(lzma.decompress((ROOT / "models" / "training" / "glossary.json.xz").read_bytes()))
    asked = [(f"What is meant by {entry['term']}?", entry["answer"]) for entry in glossary]
    longest = sorted(asked, key=lambda each: -len(each[1]))  # about `max_tokens` tokens, so that all of it repeats
    found = []
    for i in range(batch):
        n = i + turn * batch
        first, second = _THINGS[n % 8], _THINGS[(n // 8 + 3) % 8]
        line = f'{{"id": {n % 90 + 10}, "name": "{first}", "place": "{second}", "open": true}},\n'
        found.append({
            "repeating": "{0}\n{1}\n{0}\n{1}\n{0}".format(*longest[n % 64]),
            "glossary": asked[n % len(asked)][0],
            "json": f"Weather in {_CITIES[n % 8]} and in {_CITIES[(n // 8 + 3) % 8]} as JSON:\n" + line * 2,
            "story": f"Tell me a story about a {first} and a {second}.",
        }[kind])  # fmt: skip
    return found


KINDS = ("repeating", "glossary", "json", "story")


def jobs_of(args: argparse.Namespace) -> dict[tuple[str, str], dict[str, Any]]:
    """What each arm is told, by (engine, method), in the order in which they start."""
    common = {
        "model": MODEL, "max_num_seqs": max(args.batches), "max_tokens": args.max_tokens,
        "processor_time": args.processor_time,
    }  # fmt: skip
    methods = {method: METHODS[method] for method in METHODS if method == "none" or method in args.methods}
    told = {(engine, method): config for engine in engines_of(args) for method, config in methods.items()}
    rejecting = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 1.0}
    for method, config in methods.items():
        if config is not None:
            told[f"{REJECTING}, mini_vllm", method] = {**config, **rejecting}
            told[f"{SWITCHED}, mini_vllm", method] = {**config, "disable_when_slower": True}
    return {
        (name, method): {**common, "engine": name.rpartition(" ")[2], "speculative_config": config}
        for (name, method), config in told.items()
    }


def engines_of(args: argparse.Namespace) -> dict[str, str]:
    """The engines and the Python of each. Real vLLM is first."""
    return {**({"vllm": args.vllm_python} if args.vllm_python else {}), "mini_vllm": sys.executable}


def start_arms(args: argparse.Namespace) -> dict[tuple[str, str], Arm]:
    """A process for each engine and method. Each is waited for before the next one starts: several that load, and
    compile, at once want more memory and more minutes than there are.

    Raises:
        ArmError: one did not come up; those before it are ended.
    """
    arms: dict[tuple[str, str], Arm] = {}
    pythons = engines_of(args)
    try:
        for (name, method), job in jobs_of(args).items():
            start = time.monotonic()
            arm = Arm("arm_spec_decode.py", job, args.threads, pythons[job["engine"]])
            arms[name, method] = arm
            arm.ask("start")
            print(f"{name}, {method}: up after {time.monotonic() - start:.0f} s", file=sys.stderr)
    except ArmError as error:
        for arm in arms.values():
            arm.close()
        raise ArmError(f"{name}, {method}: {error}") from None
    return arms


def measure(arms: dict[tuple[str, str], Arm], args: argparse.Namespace, began: float) -> list[dict[str, Any]]:
    """Every arm, kind and batch, turn after turn; the first does not count, and a last one that would be late is not
    begun. What rejecting all drafts costs is asked in the first turns alone. began: when the first arm was started."""
    from mini_vllm.tokenizers.registry import load_tokenizer

    tokenizer, rows = load_tokenizer(MODEL), []
    for turn in range(args.repeats + 1):
        start = time.monotonic()
        for kind in args.kinds:
            for batch in args.batches:
                prompts = [tokenizer.encode(text) for text in prompts_of(kind, batch, turn)]
                asked = {arm: each for arm, each in arms.items() if turn <= _REJECTING_TURNS or REJECTING not in arm[0]}
                told = {arm: answer(process, prompts, args.processor_time) for arm, process in asked.items()}
                if turn:
                    rows.append({"kind": kind, "batch": batch, "turn": turn, "arms": told})
        now = time.monotonic()
        print(f"turn {turn}: {now - start:.0f} s", file=sys.stderr)
        if turn and now - began + (now - start) > 60 * args.minutes:
            break
    return rows


def answer(process: Arm, prompts: list[list[int]], processor_time: bool) -> dict[str, Any]:
    """What an arm says to these prompts; where it is processor time the fastest of three times: neighbours only add."""
    answers = [process.ask("generate", prompts=prompts) for _ in range(3 if processor_time else 1)]
    return min(answers, key=lambda told: told["seconds"])


def ratios(rows: list[dict[str, Any]], engine: str, method: str, kind: str, batch: int) -> Iterator[dict[str, float]]:
    """Of each turn: gain, tokens of a request in a step, cost of a step, acceptance."""
    for row in rows:
        if (row["kind"], row["batch"]) != (kind, batch):
            continue
        plain, drafted = row["arms"][engine, "none"], row["arms"][engine, method]
        rejecting, switched = (row["arms"].get((f"{how}, {engine}", method)) for how in (REJECTING, SWITCHED))
        _, made, accepted = drafted["drafts"]
        yield {
            "gain": plain["seconds"] / drafted["seconds"],
            "tokens": plain["steps"] / drafted["steps"],
            "cost": rejecting["seconds"] / plain["seconds"] if rejecting else float("nan"),
            "switched": plain["seconds"] / switched["seconds"] if switched else float("nan"),
            "accepted": accepted / made if made else 0.0,
            "same": float(plain["tokens"] == drafted["tokens"] == (switched or plain)["tokens"]),
        }


def cells(rows: list[dict[str, Any]], args: argparse.Namespace, engines: list[str]) -> Iterator[dict[str, Any]]:
    """Medians over the turns, of each kind, batch, engine and method."""
    for kind in args.kinds:
        for batch in args.batches:
            for engine in engines:
                for method in args.methods:
                    found = list(ratios(rows, engine, method, kind, batch))
                    told = {name: [each[name] for each in found if each[name] == each[name]] for name in found[0]}
                    m: dict[str, Any] = {
                        name: statistics.median(values) if values else None for name, values in told.items()
                    }
                    predicted = m["tokens"] / m["cost"] if m["cost"] else None
                    off = predicted / m["gain"] - 1 if predicted else None
                    where = {"kind": kind, "batch": batch, "engine": engine, "method": method}
                    yield {**where, **m, "predicted": predicted, "off": off}


def report(found: list[dict[str, Any]]) -> str:
    """The table, and what the goals of the project say to it."""
    header = ["prompts", "batch", "engine", "drafts", "accepted", "same tokens", "gain", "switched", "E", "cost"]
    lines: list[list[Any]] = [
        [
            *(m[name] for name in ("kind", "batch", "engine", "method")), f"{m['accepted']:.0%}", f"{m['same']:.0%}",
            *(m[name] for name in ("gain", "switched", "tokens", "cost", "predicted")),
            None if m["off"] is None else f"{m['off']:+.1%}",
        ]
        for m in found
    ]  # fmt: skip
    ours = [m for m in found if m["engine"] == "mini_vllm"]
    wanted = [("repeating", "ngram", 2.0), ("glossary", "eagle", 1.3), ("json", "eagle", 1.3)]
    said = []
    for kind, method, least in wanted:
        for m in ours:
            if (m["kind"], m["batch"], m["method"]) == (kind, 1, method):
                theirs = [x["gain"] for x in found if x["engine"] == "vllm" and same_cell(x, m)]
                beside = f", real vLLM {theirs[0]:.2f}" if theirs else ""
                said.append([f"{method} on {kind}, batch 1", f"at least {least}", f"{m['gain']:.2f}{beside}"])
    lowest, furthest = min(ours, key=lambda m: m["switched"]), max(ours, key=lambda m: abs(m["off"]))
    of = "{0[method]} on {0[kind]}, batch {0[batch]}"
    said.append([f"switched, lowest: {of.format(lowest)}", "at least 0.95", f"{lowest['switched']:.2f}"])
    said.append([f"model, furthest off: {of.format(furthest)}", "within 10 %", f"{furthest['off']:+.1%}"])
    near = sum(abs(m["off"]) <= 0.1 for m in ours)
    said.append(["model, within 10 %", f"{len(ours)} of {len(ours)}", f"{near} of {len(ours)}"])
    return table([*header, "E / cost", "off"], lines) + "\n\n" + table(["goal", "wanted", "measured"], said)


def same_cell(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two cells differ in the engine alone."""
    return all(one[name] == other[name] for name in ("kind", "batch", "method"))


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=9, help="turns that count, at most")
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="from the first start; no turn is begun to end later"
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS)[1:], default=list(METHODS)[1:])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vllm-python", default=None, help="a Python that has the CPU build of real vLLM")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, where others use the machine too")
    parser.add_argument("--quick", action="store_true", help="one small turn; nothing is written")
    args = parser.parse_args(argv)
    args.threads = 1 if args.processor_time else args.threads
    facts = machine()
    if args.quick:
        args.batches, args.repeats, args.max_tokens, args.minutes = [1, 2], 1, 24, 0.5
    if args.vllm_python is None and (usual := Path(ROOT, ".venv-vllm/bin/python")).is_file():
        args.vllm_python = str(usual)
    arms: dict[tuple[str, str], Arm] = {}
    try:
        began = time.monotonic()
        arms = start_arms(args)
        rows = measure(arms, args, began)
    except ArmError as error:
        print(f"an engine did not answer: {error}", file=sys.stderr)
        return 1
    finally:
        for arm in arms.values():
            arm.close()
    found = list(cells(rows, args, list(engines_of(args))))
    settings = {**vars(args), "vllm_python": bool(args.vllm_python)}  # no path of this machine
    turns = len({row["turn"] for row in rows})
    text = f"# What drafts buy\n\n{facts}\n\nThreads: {args.threads}. Turns: {turns}, medians.\n\n{report(found)}"
    for row in rows:
        of_arms = {" ".join(arm): dict(told) for arm, told in row["arms"].items()}
        row["arms"] = {arm: {k: v for k, v in told.items() if k != "tokens"} for arm, told in of_arms.items()}
    save(
        "spec_decode",
        {"machine": facts, "settings": settings, "cells": found, "rows": rows},
        text,
        keep=not (args.quick or args.processor_time),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
