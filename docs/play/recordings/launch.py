"""The launch timeline: what lab 05-04's capture of bare torch on an H200 measured, and what is asked about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CAPTURED = (
    Path(__file__).resolve().parents[3]
    / "phase-05-cuda-graphs-and-torch-compile/labs/lab-04-graph-vs-eager-real/captured"
)
KEPT = ("ms_per_step", "kernels", "launching_calls", "gpu_busy_ms")


def record() -> dict[str, Any]:
    """Model -> batch -> way -> what is drawn; the machine; the answers."""
    captured = json.loads((CAPTURED / "h200-graphs.json").read_text(encoding="utf-8"))
    made = json.loads((CAPTURED / "provenance.json").read_text(encoding="utf-8"))["h200-graphs"]
    runs: dict[str, dict[str, Any]] = {}
    for model in ("opt-125m", "qwen3-0.6b"):
        for row in captured[model]:
            ways = {way: {key: figures[key] for key in KEPT} for way, figures in row["ways"].items()}
            runs.setdefault(model, {})[str(row["batch"])] = ways
    one, eight = runs["qwen3-0.6b"]["1"], runs["qwen3-0.6b"]["8"]
    step = {way: figures["ms_per_step"] for way, figures in one.items()}
    answers = {
        "idle": f"{100 * one['eager']['gpu_busy_ms'] / step['eager']:.0f} %",
        "batch": f"{eight['eager']['ms_per_step'] / step['eager']:.1f} times as long",
        "calls": int(one["graph"]["launching_calls"]),
        "which": "the graph" if step["graph"] < step["compiled"] else "the compiler",
        "gain": f"{step['eager'] / step['compiled + graph']:.1f} times as fast",
    }
    machine = f"{made['device']}, torch {made['versions']['torch']}, {made['date']}"
    return {"answers": answers, "machine": machine, "runs": runs}
