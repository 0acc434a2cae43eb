"""A ring of eight with your all_reduce (LAB_IMPL=solution: the reference): who sent what, and what a death looks like.

python phase-10-distributed-inference/labs/lab-06-ring-all-reduce/demo.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402


def demo(lab: ModuleType) -> str:
    """Three runs: a large sum, the bits of sums on 2 to 8 ranks, and a rank that dies on the way."""
    given, rng, lines = load(HERE / "given.py"), np.random.default_rng(0), []
    xs = [rng.standard_normal(400_000).astype(np.float32) for _ in range(8)]
    found = given.launch(lab.all_reduce, xs)
    for rank, each in enumerate(found):
        what = f"sent {each[2]:,} bytes" if each[0] == "ok" else " ".join(map(str, each))
        lines.append(f"rank {rank} of 8: {each[0]}, {what}, of an array of {xs[0].nbytes:,}")
    lines.append("")
    for size in (2, 3, 4, 8):
        results = given.launch(lab.all_reduce, [x[:4096] for x in xs[:size]])
        if all(each[0] == "ok" for each in results):
            one = given.left_to_right([x[:4096] for x in xs[:size]])
            apart = float((results[0][1] != one).mean())
            same = all(np.array_equal(results[0][1], each[1]) for each in results)
            agree = "all ranks agree" if same else "ranks differ"
            lines.append(f"{size} ranks: {agree}; {apart:.0%} of the numbers are not those of one process")
    lines.append("")
    for rank, each in enumerate(given.launch(lab.all_reduce, [x[:4096] for x in xs[:4]], kill=(2, 4096))):
        lines.append(f"rank 2 dies after 4,096 bytes. Rank {rank}: {each[2] if each[0] == 'err' else each[0]}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(demo(load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")))
