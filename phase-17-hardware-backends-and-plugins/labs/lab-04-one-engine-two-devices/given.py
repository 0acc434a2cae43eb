"""Given: what was captured, synthetic logits, and the plans of an engine on two devices."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from course.labs import load

HERE = Path(__file__).resolve().parent
KINDS = ("text", "random")
PROMPTS = ([5, 6, 7, 8] * 5, [300, 301, 302] * 7, [900, 17] * 3)


@cache
def captured(device: str = "torch") -> dict[str, np.ndarray]:
    """`captured/DEVICE.npz`: of each kind of text the reference's `gaps` and `lengths` of answers, and for each kind of
    numbers the device's gaps between the same two tokens, and `flips`, where it takes another token."""
    with np.load(HERE / "captured" / f"{device}.npz") as file:
        return {name: file[name] for name in file.files}


def summary(device: str = "torch") -> dict[str, Any]:
    """`captured/DEVICE.json`."""
    return json.loads((HERE / "captured" / f"{device}.json").read_text(encoding="utf-8"))


def flips(numbers: str, device: str = "torch") -> int:
    """How many of all decisions this device takes otherwise, in these numbers."""
    return sum(int(captured(device)[f"{kind}/{numbers}/flips"].sum()) for kind in KINDS)


def synthetic(seed: int, rows: int = 2000, width: int = 64, sd: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Logits [rows, width] of a reference, and of a device whose every number is off by normal noise."""
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal((rows, width))
    return ref, ref + sd * rng.standard_normal((rows, width))


def plans(device: str, dtype: str, **settings: Any) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Plans of three requests of twelve tokens on this device, step by step, and their tokens."""
    capture = load(HERE / "capture.py")
    llm = capture.make(device, dtype, 32, async_scheduling=False, max_num_batched_tokens=16, max_num_seqs=4, **settings)
    watched = capture.Plans(llm)
    outputs = capture.generate(llm, PROMPTS, max_tokens=12)
    llm.llm_engine.shutdown()
    return watched.steps, [list(each.outputs[0].token_ids) for each in outputs]
