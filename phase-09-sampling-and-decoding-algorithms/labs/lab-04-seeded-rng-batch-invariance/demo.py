"""Your streams at work: `python demo.py [SEED]` (LAB_IMPL=solution for the reference).

Pocket tells the same seeded story three times: alone; among five other requests, in a pool so small that somebody has
to give way and start again; and once more in that crowd, with one stream for all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402
from mini_vllm import SamplingParams  # noqa: E402

QUESTION = "Tell me a story about a fox and a violin."
NEIGHBOURS = ["Tell me a joke.", "What is a KV block?", "Tell me a story.", "What is attention?", "Count to nine."]
SMALL = {"num_blocks": 34, "block_size": 4, "max_num_seqs": 6}
DIM, PLAIN = "\033[2m", "\033[0m"


class OneStream:
    """The mistake: whoever comes next takes the next numbers."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)

    def sample(self, rows: Any, logits: np.ndarray) -> list[int]:
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (weights / self.rng.exponential(size=logits.shape)).argmax(axis=1).tolist()


def story(serve: Any, lab: Any, seed: int, crowd: bool, max_tokens: int = 32) -> tuple[str, int]:
    """The story, and how often somebody was preempted."""
    llm = serve.served(lab, **(SMALL if crowd else {}))
    asked = [QUESTION, *NEIGHBOURS][: 6 if crowd else 1]
    chats = [[{"role": "user", "content": question}] for question in asked]
    params = [SamplingParams(temperature=0.9, seed=seed + i, max_tokens=max_tokens) for i in range(len(chats))]
    output = llm.chat(chats, params, use_tqdm=False)[0]
    return output.outputs[0].text, llm.llm_engine.stats.num_preemptions


def main() -> None:
    serve = load(HERE / "serve.py")
    lab = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    shared = SimpleNamespace(PerRequestSampler=OneStream, Row=lab.Row)
    first, _ = story(serve, lab, seed, crowd=False)
    print(f"{QUESTION}  seed {seed}\n\nalone              {first}")
    for name, code in (("in a crowd", lab), ("one stream for all", shared)):
        text, preempted = story(serve, code, seed, crowd=True)
        same = next((i for i, (a, b) in enumerate(zip(text, first, strict=False)) if a != b), len(text))
        print(f"{name:18} {DIM}{text[:same]}{PLAIN}{text[same:]}  ({preempted} preemptions)")


if __name__ == "__main__":
    main()
