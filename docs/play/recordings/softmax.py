"""Truths of the online-softmax playground, by `mini_vllm/attention/ops/online_softmax.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm import Summary, finalize, identity, merge_two
from mini_vllm.attention.ops.online_softmax import attend_tile

SCORES = [0.5, 2.0, -1.0, 1.2, 1.0, 4.0, 0.3, 2.2, 3.5, 0.0, 1.4, -0.6]
CLIMBING = [0.2, 1.0, -0.4, 0.6, 2.0, 0.1, 1.3, -1.0, 0.8, 4.0, 2.4, 1.1]
VALUES = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120]


def tile(scores: list[float], values: list[float]) -> Summary:
    """The summary of some keys whose scores are known: keys [n, 1] that the query 1 turns into the scores."""
    found = attend_tile(np.ones((1, 1)), np.array(scores)[:, None], np.array(values, float)[:, None], scale=1.0)
    return Summary(float(found.m[0]), float(found.denom[0]), found.acc[0])


def run(
    scores: list[float], values: list[float], size: int, order: list[int], forget: bool = False
) -> list[dict[str, float]]:
    """As `run` of softmax.js."""
    kept, states = Summary(-np.inf, 0.0, identity(1, 1).acc[0]), []
    for which in order:
        part = tile(scores[which * size : (which + 1) * size], values[which * size : (which + 1) * size])
        merged = merge_two(kept, part)
        correction, own = float(np.exp(kept.m - merged.m)), float(np.exp(part.m - merged.m))
        if forget:
            merged = Summary(merged.m, kept.denom + own * part.denom, kept.acc + own * part.acc)
        kept = merged
        numbers = {"m": kept.m, "denom": kept.denom, "acc": kept.acc[0]}
        states.append({"which": which, "correction": correction} | {key: float(v) for key, v in numbers.items()})
    return states


def record() -> dict[str, Any]:
    """Answers, and the scores of the pictures."""
    forwards = run(SCORES, VALUES, 4, [0, 1, 2])
    climbing = run(CLIMBING, VALUES, 4, [2, 1, 0])
    of_first = [1.0] * 4 + [0.0] * 8
    right, wrong = (run(SCORES, of_first, 4, [0, 1, 2], forget)[-1] for forget in (False, True))
    favours = wrong["acc"] / wrong["denom"] > right["acc"] / right["denom"] + 1e-9
    both = merge_two(Summary(2.0, 1.5, np.zeros(1)), Summary(4.0, 1.2, np.zeros(1)))
    assert finalize(both)[0] == 0
    answers = {
        "correction": f"{forwards[1]['correction']:.4f}",
        "quiet": f"{forwards[2]['correction']:g}",
        "order": sum(state["correction"] != 1 for state in climbing[1:]),
        "forget": "those of the first tile" if favours else "nobody's: it is right",
        "merge": f"{float(both.denom):.4g}",
    }
    return {"answers": answers, "scores": SCORES, "climbing": CLIMBING, "values": VALUES}
