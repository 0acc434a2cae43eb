"""Which experts `models/pocket-moe` chooses for three kinds of text. Given material: nothing to edit here.

Six layers with eight experts each, two of them for a token. Prompts and greedy answers are counted alike.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mini_vllm
from mini_vllm import LLM, SamplingParams

POCKET_MOE = Path(mini_vllm.__file__).resolve().parents[1] / "models" / "pocket-moe"
QUESTIONS = {
    "words": [
        "What is a KV block?",
        "Why do we need a block table?",
        "What is preemption?",
        "What is the difference between prefill and decode?",
        "WHAT DOES TTFT MEAN",
        "What is chunked prefill?",
    ],
    "sums": [f"What is {a} + {b}?" for a, b in ((47, 85), (12, 99), (64, 36), (8, 77), (51, 23), (90, 19))],
    "stories": [
        "Tell me a story about a fox and a violin.",
        "Tell me a story about a dragon and a lamp.",
        "Tell me a story about a robot.",
        "Tell me a story about a king and a goose.",
    ],
}


def loads_of_pocket() -> dict[str, np.ndarray]:
    """Assignments [layers, experts] for each kind of text."""
    llm = LLM(model=POCKET_MOE)
    expert_load = llm.llm_engine.stats.expert_load
    assert expert_load is not None, "a model without experts"
    params, found = SamplingParams(temperature=0.0, max_tokens=60), {}
    for kind, questions in QUESTIONS.items():
        expert_load.reset()
        llm.chat([[{"role": "user", "content": question}] for question in questions], params, use_tqdm=False)
        found[kind] = expert_load.counts.copy()
    return found
