"""How often one of the first k places answers: `python -m models.search.evaluate`. Two minutes.

On both splits of `models/pocket-embed/questions.toml`: words alone, meaning alone, and both as `course ask` has them.
What `course ask` chooses, it chose on `development`; `test` was only measured.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from course.labs import tomllib
from models.search.index import MODEL, Index, best_of, embed, make_embedder, weights_of
from models.search.sections import Section, spaced

DEPTHS = (1, 3, 5, 10)


def questions_of(root: Path, split: str) -> list[dict]:
    """The questions of one split, `development` or `test`."""
    every = tomllib.loads((root / MODEL / "questions.toml").read_text(encoding="utf-8"))["question"]
    return [question for question in every if question["split"] == split]


def found_among(sections: Sequence[Section], scores: np.ndarray, question: dict, count: int) -> bool:
    """Whether one of the first `count` places is one that answers."""
    return any(is_right(sections[i], question) for i in best_of(sections, scores, count))


def is_right(place: Section, question: dict) -> bool:
    """Whether this place is one that answers."""
    return place.key in question["gold"] or place.file in question["gold"]


def phase_of(question: dict) -> str:
    """`phase 10`, by the first place of a phase that answers; the rest is asked of the course itself."""
    phases = re.findall(r"phase-\d\d", " ".join(question["gold"]))
    return phases[0].replace("-", " ") if phases else "no phase"


def recall(index: Index, questions: list[dict], scores: Sequence[np.ndarray]) -> dict[str, float]:
    """Share of the questions for which one of the first k places is right, for each k of `DEPTHS`."""
    right = [[found_among(index.sections, row, q, k) for k in DEPTHS] for row, q in zip(scores, questions, strict=True)]
    return {f"recall@{k}": round(float(share), 3) for k, share in zip(DEPTHS, np.mean(right, axis=0), strict=True)}


def main() -> None:
    """Print the table, and write it beside the model."""
    root = Path(".")
    llm, index, weights = make_embedder(root), Index.of(root), weights_of(root)
    table: dict = {"sections": len(index.sections), "passages": len(index.owners)}
    if index.read_passages(llm, range(len(index.sections))):
        index.keep(root)
    for split in ("development", "test"):
        questions = questions_of(root, split)
        vectors = embed(llm, [spaced(question["ask"]) for question in questions])
        scores = [index.scores(llm, question["ask"], weights) for question in questions]
        table[split] = {
            "questions": len(questions),
            "BM25": recall(index, questions, [index.words(question["ask"])[:, 0] for question in questions]),
            "pocket-embed": recall(index, questions, [index.similarity(vector) for vector in vectors]),
            "course ask": recall(index, questions, scores),
        }
        by_phase: dict[str, list[bool]] = defaultdict(list)
        for question, row in zip(questions, scores, strict=True):
            by_phase[phase_of(question)].append(found_among(index.sections, row, question, 3))
        table[split]["course ask, recall@3 by phase"] = {
            name: f"{sum(found)} of {len(found)}" for name, found in sorted(by_phase.items())
        }
    (root / MODEL / "metrics.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
