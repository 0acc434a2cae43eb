"""Writes what inductor makes of three small functions on this machine's CPU, and how long one of them takes.

    python capture.py --out captured

Given material. Needs torch and a C++ compiler. The tests of `read_cpp` read these files and need no compiler.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch._inductor.utils import run_and_get_code

from course.labs import load

HERE = Path(__file__).resolve().parent


def relu(x: torch.Tensor) -> torch.Tensor:
    """One loop and nothing between."""
    return torch.relu(x) * 2 + 1


def between(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A matrix product, which inductor leaves to a library, with something before and after it."""
    return torch.tanh(torch.relu(x + 1) @ w)


def microseconds(call: Callable[[], object], seconds: float = 1.0) -> float:
    """Median time of a call."""
    spans, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        spans.append(time.perf_counter() - start)
    return round(1e6 * statistics.median(spans), 1)


def times(norm_gate: Callable[..., torch.Tensor]) -> list[dict[str, float]]:
    """norm_gate eagerly and compiled, one thread, [rows, 384] in float32."""
    compiled, w, rows = torch.compile(norm_gate, dynamic=False), torch.randn(384), []
    for n in (64, 4096):
        x = torch.randn(n, 384)
        arms = {"eager_us": lambda x=x: norm_gate(x, w), "compiled_us": lambda x=x: compiled(x, w)}
        worst = (arms["eager_us"]() - arms["compiled_us"]()).abs().max().item()
        row = {name: microseconds(call) for name, call in arms.items()}
        rows.append({"rows": n, **row, "largest_difference": float(f"{worst:.1e}")})
    return rows


def main() -> None:
    """Compiles, checks against eager, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder for the programs and provenance.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    norm_gate = load(HERE / "solution.py").norm_gate
    x, w, square = torch.randn(64, 384), torch.randn(384), torch.randn(384, 384)
    runs = {"norm_gate": (norm_gate, x, w), "relu": (relu, x), "between": (between, x, square)}
    args.out.mkdir(parents=True, exist_ok=True)
    for name, (function, *inputs) in runs.items():
        torch._dynamo.reset()
        result, (code,) = run_and_get_code(torch.compile(function), *inputs)
        torch.testing.assert_close(result, function(*inputs))
        (args.out / f"{name}.txt").write_text(code, encoding="utf-8")
    text = "".join(json.dumps(row) + "\n" for row in times(norm_gate))
    (args.out / "times.jsonl").write_text(text, encoding="utf-8")
    command = "python capture.py --out captured"
    facts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "commands": dict.fromkeys([*(f"{name}.txt" for name in runs), "times.jsonl"], command),
        "edited": "no",
    }
    (args.out / "provenance.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
