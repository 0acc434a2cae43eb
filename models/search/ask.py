"""`course ask`: a question in, the three best places of the course out."""

from __future__ import annotations

from pathlib import Path

from models.search.index import Index, embed, make_embedder, state_of

CACHE = Path(".course/ask.npz")


def ask(root: Path, question: str, count: int = 3) -> list[str]:
    """`file:line  heading` of the best places. The first call, and the first after a page has changed, reads all pages.

    Raises:
        ValueError: the question is empty.
    """
    if not question.strip():
        raise ValueError("question must not be empty, for example: course ask 'why is a block freed in reverse order?'")
    state, llm = state_of(root), make_embedder(root)
    index = Index.load(root / CACHE, state)
    if index is None:
        index = Index.build(root, llm)
        index.save(root / CACHE, state)
    best = index.best(index.scores(question, embed(llm, [question])[0]), count)
    return [f"{index.sections[i].file}:{index.sections[i].line}  {index.sections[i].title}" for i in best]
