"""Your pooler finds definitions: `python demo.py` (LAB_IMPL=solution for the reference).

Twenty terms of the course, each in two wordings of pocket's training texts: the first wording is the query, the twenty
second ones are the library. Pocket is no embedding model, so few are found; what matters is which ones are lost.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402

TERMS = (
    "attention", "prefill", "decode", "a KV block", "a block table", "a token", "a logit", "temperature", "preemption",
    "chunked prefill", "prefix caching", "a scheduler", "a kernel", "quantization", "speculative decoding", "a draft",
    "beam search", "a grammar", "an expert", "a router",
)  # fmt: skip


def hidden_of(given: Any, texts: list[str]) -> list[np.ndarray]:
    """Rows of pocket for each text."""
    tokenizer = given._llm().get_tokenizer()
    kept = given.prompts
    given.prompts = lambda: [tokenizer.encode(text) for text in texts]
    try:
        return given.hidden_of_pocket.__wrapped__()
    finally:
        given.prompts = kept


def pooled(lab: Any, prompts: list[np.ndarray], kind: str, chunk: int, last_only: bool = False) -> np.ndarray:
    """Every prompt through the learner's pooler, `chunk` tokens a step; or the mean of the last chunk alone."""
    vectors = []
    for rows in prompts:
        if last_only:
            vectors.append(rows[(len(rows) - 1) // chunk * chunk :].mean(axis=0))
            continue
        pooler, found = lab.RaggedPooler(kind), {}
        for at in range(0, len(rows), chunk):
            piece = rows[at : at + chunk].copy()
            found = pooler.step(piece, [("A", at, len(piece), len(rows))])
        vectors.append(found["A"])
    return lab.embed(np.stack(vectors))


def main() -> None:
    given, lab = load(HERE / "given.py"), load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    queries = hidden_of(given, [f"What is {term}?" for term in TERMS])
    library = hidden_of(given, [f"Explain to me what is meant by {term}." for term in TERMS])
    print(f"{'':26}found among {len(TERMS)}")
    for name, kind, chunk, last in (
        ("CLS, whole", "CLS", 512, False), ("LAST, whole", "LAST", 512, False), ("MEAN, whole", "MEAN", 512, False),
        ("MEAN, chunks of 4", "MEAN", 4, False), ("mean of the last chunk", "MEAN", 4, True),
    ):  # fmt: skip
        scores = pooled(lab, queries, kind, chunk, last) @ pooled(lab, library, kind, chunk, last).T
        print(f"{name:26}{int((scores.argmax(axis=1) == np.arange(len(TERMS))).sum())}")


if __name__ == "__main__":
    main()
