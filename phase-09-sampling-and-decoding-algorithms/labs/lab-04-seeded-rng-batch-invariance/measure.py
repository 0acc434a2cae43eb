"""What rounding of logits does to seeded answers: `python measure.py` writes captured/rounding.json (half a minute).

Pocket tells six stories. At each of their positions 300 requests draw the next token at temperature 1, each with
a seed of its own, from the logits as they are, and once more with the same seeds from the logits rounded to bfloat16,
as a GPU hands them over. Counted: requests that get another token, for two ways to draw.

    running sums    where one uniform number falls among the running sums of the probabilities
    race            the reference

Counts alone, no times. Logits come from float32 products, whose last bits depend on the machine.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from course.captures import cpu_name, write_provenance  # noqa: E402
from course.labs import load  # noqa: E402
from mini_vllm import LLM, SamplingParams  # noqa: E402

HERE = Path(__file__).resolve().parent
SEEDS = 300
SUBJECTS = ["a fox and a violin", "a tailor", "the sea", "two brothers", "a clock", "a lost hat"]


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest value with eight bits of significand."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def logits_of_stories() -> np.ndarray:
    """[positions, V]: what pocket thinks at each token of six stories."""
    seen: list[np.ndarray] = []
    llm = LLM(str(ROOT / "models" / "pocket"))
    runner = llm.llm_engine.engine_core.model_runner
    compute = runner.compute_logits

    def keep(hidden: np.ndarray) -> np.ndarray:
        seen.append(compute(hidden).copy())
        return seen[-1].copy()

    runner.compute_logits = keep
    chats = [[{"role": "user", "content": f"Tell me a story about {subject}."}] for subject in SUBJECTS]
    llm.chat(chats, [SamplingParams(temperature=0.9, seed=i, max_tokens=40) for i in range(6)], use_tqdm=False)
    return np.concatenate(seen)


def running_sums(logits: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """A token for each of these numbers in [0, 1)."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.searchsorted(np.cumsum(weights / weights.sum()), uniform, side="right").clip(max=len(logits) - 1)


def run() -> dict[str, Any]:
    """Shares of draws that change."""
    solution = load(HERE / "solution.py")
    stories = logits_of_stories()
    changed = {"running sums": 0, "race": 0}
    for position, logits in enumerate(stories):
        rounded, sampler = to_bfloat16(logits), solution.PerRequestSampler()
        uniform = np.random.default_rng([0, position]).random(SEEDS)
        changed["running sums"] += int((running_sums(logits, uniform) != running_sums(rounded, uniform)).sum())
        rows = [solution.Row(str(seed), seed, 1.0, position) for seed in range(SEEDS)]
        both = [sampler.sample(rows, np.broadcast_to(each, (len(rows), len(each)))) for each in (logits, rounded)]
        changed["race"] += sum(a != b for a, b in zip(*both, strict=True))
    draws = SEEDS * len(stories)
    share = {name: count / draws for name, count in changed.items()}
    return {"positions": len(stories), "draws": draws, "share": share}


def main() -> None:
    found = run()
    (HERE / "captured").mkdir(exist_ok=True)
    (HERE / "captured" / "rounding.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    entry = {
        "machine": "x86-64 virtual machine, 2 cores, other work running beside it", "cpu": cpu_name(), "device": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {"numpy": np.__version__, "python": platform.python_version()},
        "model": "models/pocket, float32", "commands": {"rounding.json": "measure.py"}, "edited": "no",
    }  # fmt: skip
    write_provenance(HERE / "captured", "cpu", entry)
    print(found)


if __name__ == "__main__":
    main()
