"""What settings cost: `python measure.py` prints the price list of your code (LAB_IMPL=solution for the reference).

`python measure.py --write` measures the reference and writes captured/prices.json. Times are CPU time of one thread,
the smallest of some repeats, in milliseconds; set OMP_NUM_THREADS=1. Logits are normal, times 3; T = 0.8.

    partition   numpy's partition of 32 x 4,096, for the 50 largest: fresh rows, and rows of which top-k 50 has left 50
    edges       top-p 0.9 by three ways to find its edge, on rows as they come and behind top-k 50
    prices      the reference on 32 x 4,096, each setting alone and some together
    batches     one pass beside one row at a time, for more and fewer rows
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from course.captures import cpu_name, write_provenance  # noqa: E402
from course.labs import load  # noqa: E402

HERE = Path(__file__).resolve().parent
SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature alone": {},
    "min_p=0.05": {"min_p": 0.05},
    "top_k=50": {"top_k": 50},
    "top_p=0.9": {"top_p": 0.9},
    "top_k=50, top_p=0.9": {"top_k": 50, "top_p": 0.9},
    "all three": {"min_p": 0.01, "top_k": 50, "top_p": 0.9},
}


def in_turns(calls: dict[str, Callable[[], Any]], repeats: int = 15) -> dict[str, float]:
    """Milliseconds of each, the smallest."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            best[name] = min(best[name], (time.thread_time() - start) * 1e3)
    return best


def logits_of(rows: int, vocab: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(rows, vocab)) * 3


def behind_top_k(logits: np.ndarray, k: int = 50) -> np.ndarray:
    kth = np.partition(logits, logits.shape[1] - k, axis=1)[:, -k, None]
    return np.where(logits < kth, -np.inf, logits)


def partition() -> dict[str, float]:
    """The experiment of `predicted_ratio`."""
    fresh = logits_of(32, 4096)
    masked = behind_top_k(fresh)
    calls = {"fresh": lambda: np.partition(fresh, 4046, axis=1), "masked": lambda: np.partition(masked, 4046, axis=1)}
    calls |= {"fresh, sorted": lambda: np.sort(fresh, axis=1), "masked, sorted": lambda: np.sort(masked, axis=1)}
    calls["masked, gathered and sorted"] = lambda: np.sort(masked[masked > -np.inf].reshape(32, 50), axis=1)
    found = in_turns(calls)
    return {**found, "ratio": found["masked"] / found["fresh"]}


def edge_by_sort(logits: np.ndarray) -> np.ndarray:
    """Top-p 0.9: everything in order."""
    return _edge(np.sort(logits, axis=1), logits)


def edge_by_partition(logits: np.ndarray) -> np.ndarray:
    """Top-p 0.9: the largest 256 in order, then four times as many, until they hold enough."""
    whole, width = np.exp(logits).sum(axis=1), 256
    while width < logits.shape[1]:
        top = np.partition(logits, logits.shape[1] - width, axis=1)[:, -width:]
        if (np.exp(top).sum(axis=1) >= 0.9 * whole).all():
            return _edge(np.sort(top, axis=1), logits)
        width *= 4
    return edge_by_sort(logits)


def edge_by_gathering(logits: np.ndarray) -> np.ndarray:
    """Top-p 0.9: what is left of each row in order."""
    alive = logits > -np.inf
    counts = alive.sum(axis=1)
    width = counts.max()
    packed = np.full((len(logits), width), -np.inf)
    packed[np.arange(width) >= width - counts[:, None]] = logits[alive]
    return _edge(np.sort(packed, axis=1), logits)


def _edge(ascending: np.ndarray, logits: np.ndarray) -> np.ndarray:
    mass = np.cumsum(np.exp(ascending), axis=1)
    dropped = (mass <= 0.1 * mass[:, -1:]).sum(axis=1)
    return np.where(logits < np.take_along_axis(ascending, dropped[:, None], axis=1), -np.inf, logits)


def edges() -> dict[str, dict[str, float]]:
    """Three ways, on two kinds of rows."""
    ways = {"sort": edge_by_sort, "partition": edge_by_partition, "gather": edge_by_gathering}
    found = {}
    for rows, vocab, repeats in ((32, 4096, 9), (8, 128_256, 3)):
        fresh = logits_of(rows, vocab)
        for kind, logits in (("fresh", fresh), ("behind top_k=50", behind_top_k(fresh))):
            calls = {name: (lambda way=way, logits=logits: way(logits)) for name, way in ways.items()}
            found[f"{rows} x {vocab:,}, {kind}"] = in_turns(calls, repeats)
    return found


def arguments(rows: int, setting: dict[str, float]) -> dict[str, Any]:
    full = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **setting}
    made: dict[str, Any] = {name: np.full(rows, float(value)) for name, value in full.items()}
    made["top_k"] = made["top_k"].astype(np.int64)
    return {**made, "generators": [np.random.default_rng(i) for i in range(rows)]}


def prices(lab: Any) -> dict[str, float]:
    """Each setting on 32 x 4,096."""
    logits = logits_of(32, 4096)
    made = {name: arguments(32, setting) for name, setting in SETTINGS.items()}
    return in_turns({name: (lambda given=given: lab.sample_batch(logits, **given)) for name, given in made.items()})


def batches(lab: Any) -> dict[str, dict[str, float]]:
    """All three settings: one pass, and `sample_row` for each row."""
    row, found = load(HERE / "given.py").sample_row, {}
    for rows, vocab in ((1, 4096), (8, 4096), (64, 4096), (64, 512)):
        logits, given = logits_of(rows, vocab), arguments(rows, SETTINGS["all three"])

        def one_by_one(logits: np.ndarray = logits, given: dict[str, Any] = given) -> None:
            for i, scores in enumerate(logits):
                row(scores, *(given[n][i] for n in ("temperature", "top_k", "top_p", "min_p", "generators")))

        calls = {"row by row": one_by_one, "one pass": lambda a=logits, g=given: lab.sample_batch(a, **g)}
        found[f"{rows} x {vocab:,}"] = in_turns(calls, 7)
    return found


def main() -> None:
    write = "--write" in sys.argv
    lab = load(HERE / ("solution.py" if write else f"{os.environ.get('LAB_IMPL', 'starter')}.py"))
    found = {"partition": partition(), "prices": prices(lab), "edges": edges(), "batches": batches(lab)}
    for name, rows in found.items():
        print(f"\n{name}")
        for label, value in rows.items():
            text = value if isinstance(value, dict) else {"": value}
            print(f"  {label:36}", "  ".join(f"{k} {v:.2f}" for k, v in text.items()))
    if not write:
        return
    (HERE / "captured").mkdir(exist_ok=True)
    (HERE / "captured" / "prices.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    entry = {
        "machine": "x86-64 virtual machine, 2 cores, other work running beside it", "cpu": cpu_name(), "device": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {"numpy": np.__version__, "python": platform.python_version()},
        "model": "none: normal logits", "commands": {"prices.json": "measure.py --write"}, "edited": "no",
    }  # fmt: skip
    write_provenance(HERE / "captured", "cpu", entry)


if __name__ == "__main__":
    main()
