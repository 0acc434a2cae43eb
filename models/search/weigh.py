"""Fits `weights.json` to the development questions: `python -m models.search.weigh`. A minute or two.

The weights are those under which a right place is as likely as can be among the candidates, where the softmax of the
scores says how likely each of them is. The share that is written beside them is cross-validated: each fifth of the
questions is ranked with weights that the other four fifths chose.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from models.search.evaluate import found_among, is_right, questions_of
from models.search.index import FEATURES, MODEL, Index, embed, make_embedder, spaced

DECAY, STEPS, RATE, FOLDS = 0.005, 400, 0.1, 5
Row = tuple[np.ndarray, np.ndarray]


def fit(rows: list[Row]) -> np.ndarray:
    """[FEATURES], by Adam. rows: the candidates' features [n, FEATURES] and which of them are right [n], a question."""
    weights, first, second = (np.zeros(len(FEATURES)) for _ in range(3))
    for step in range(1, STEPS + 1):
        slope = DECAY * weights
        for features, right in rows:
            likely = np.exp(features @ weights - (features @ weights).max())
            slope += features.T @ (likely / likely.sum() - likely * right / (likely @ right)) / len(rows)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        weights = weights - RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    return weights


def main() -> None:
    """Fit, and write the weights beside the model."""
    root = Path(".")
    llm, index, questions = make_embedder(root), Index.of(root), questions_of(root, "development")
    if index.read_passages(llm, range(len(index.sections))):
        index.keep(root)
    vectors, rows = embed(llm, [spaced(question["ask"]) for question in questions]), []
    for question, vector in zip(questions, vectors, strict=True):
        words = index.words(question["ask"])
        chosen = index.candidates(words)
        right = np.array([is_right(index.sections[i], question) for i in chosen], float)
        rows.append((chosen, index.features(words, vector)[chosen], right))
    some = [n for n, (_, _, right) in enumerate(rows) if right.any()]
    found = 0
    for fold in range(FOLDS):
        weights = fit([rows[n][1:] for n in some if n % FOLDS != fold])
        for n in range(fold, len(rows), FOLDS):
            scores = np.full(len(index.sections), -np.inf)
            scores[rows[n][0]] = rows[n][1] @ weights
            found += found_among(index.sections, scores, questions[n], 3)
    weights = fit([rows[n][1:] for n in some])
    kept = {
        "questions": len(questions),
        "with a right place among the candidates": len(some),
        "recall@3, cross-validated": round(found / len(questions), 3),
        "weights": {name: round(float(value), 2) for name, value in zip(FEATURES, weights, strict=True)},
    }
    (root / MODEL / "weights.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(kept, indent=2))


if __name__ == "__main__":
    main()
