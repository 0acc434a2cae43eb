"""How often one of the first k places answers: `python -m models.search.evaluate`. A minute or two.

On the questions of `models/pocket-embed/questions.toml`: words alone, meaning alone, both as `course ask` has them, and
both followed by a second look at 20 places by late interaction (each token of the question takes its best match).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from course.labs import tomllib
from mini_vllm.pool.late_interaction import compute_maxsim_score
from models.search.index import MODEL, Index, best_of, embed, make_embedder, passages_of
from models.search.sections import Section

RERANKED = 20
DEPTHS = (1, 3, 10)


def questions_of(root: Path, split: str) -> list[dict]:
    """The questions of one split, `development` or `test`."""
    every = tomllib.loads((root / MODEL / "questions.toml").read_text(encoding="utf-8"))["question"]
    return [question for question in every if question["split"] == split]


def found_among(sections: Sequence[Section], scores: np.ndarray, question: dict, count: int) -> bool:
    """Whether one of the first `count` places is one that answers."""
    places = (sections[i] for i in best_of(sections, scores, count))
    return any(place.key in question["gold"] or place.file in question["gold"] for place in places)


def recall(index: Index, questions: list[dict], best: Callable[[int], list[int]]) -> dict[str, float]:
    """Share of the questions for which one of the first k places is right, for each k of `DEPTHS`."""
    right = np.zeros(len(DEPTHS))
    for n, question in enumerate(questions):
        gold = set(question["gold"])
        found = [index.sections[i].key in gold or index.sections[i].file in gold for i in best(n)]
        right += [any(found[:k]) for k in DEPTHS]
    return {f"recall@{k}": round(float(r) / len(questions), 3) for k, r in zip(DEPTHS, right, strict=True)}


def main() -> None:
    """Print the table, and write it beside the model."""
    root = Path(".")
    llm = make_embedder(root)
    index = Index.build(root, llm)
    questions = tomllib.loads((root / MODEL / "questions.toml").read_text(encoding="utf-8"))["question"]
    asked = [question["ask"] for question in questions]
    vectors = embed(llm, asked)
    words = [index.bm25.scores(text) for text in asked]
    both = [index.scores(text, vector) for text, vector in zip(asked, vectors, strict=True)]
    tokens = [o.outputs.data for o in llm.encode(asked, pooling_task="token_embed", use_tqdm=False)]

    def reranked(n: int) -> list[int]:
        first = index.best(both[n], RERANKED)
        texts = [passages_of(index.sections[i])[0] for i in first]
        rows = [o.outputs.data for o in llm.encode(texts, pooling_task="token_embed", use_tqdm=False)]
        looks = [10 * compute_maxsim_score(tokens[n], each) / len(tokens[n]) for each in rows]
        score = [both[n][i] + look for i, look in zip(first, looks, strict=True)]
        return [first[j] for j in np.argsort(-np.array(score), kind="stable")]

    table = {
        "questions": len(questions),
        "sections": len(index.sections),
        "passages": len(index.owners),
        "BM25": recall(index, questions, lambda n: index.best(words[n], 10)),
        "pocket-embed": recall(index, questions, lambda n: index.best(index.similarity(vectors[n]), 10)),
        "course ask": recall(index, questions, lambda n: index.best(both[n], 10)),
        "course ask, even questions": recall(index, questions[::2], lambda n: index.best(both[2 * n], 10)),
        "course ask, odd questions": recall(index, questions[1::2], lambda n: index.best(both[2 * n + 1], 10)),
        "course ask, reranked": recall(index, questions, reranked),
    }
    (root / MODEL / "metrics.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
