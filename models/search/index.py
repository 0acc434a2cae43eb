"""The index of the course: made from the pages as they are, kept in a file, made anew when a page changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.search.bm25 import BM25
from models.search.sections import Section, pages_to_search, read_sections, spaced

MODEL = Path("models/pocket-embed")
WORDS_A_PASSAGE = 50
PASSAGES_A_SECTION = 12
MEANING, HEADINGS = 12.0, 0.5
"""What the similarity of vectors, and words of a heading, count beside the words, which reach 10."""
VERSION = 3


def passages_of(section: Section) -> list[str]:
    """Pieces that the model reads at once, each behind the names of its page and section."""
    words = spaced(section.text).split()
    pieces = [words[i : i + WORDS_A_PASSAGE] for i in range(0, max(len(words), 1), WORDS_A_PASSAGE)]
    head = spaced(f"{section.page}: {section.title}. ")
    return [head + " ".join(piece) for piece in pieces[:PASSAGES_A_SECTION]]


def make_embedder(root: Path) -> Any:
    """The model in mini_vllm's engine, as anybody would start it."""
    from mini_vllm import LLM

    return LLM(str(root / MODEL), max_num_batched_tokens=16384, max_num_seqs=256)


def embed(llm: Any, texts: Sequence[str]) -> np.ndarray:
    """[texts, 128], each of length 1; a text beyond the context is cut."""
    tokenizer, most = llm.get_tokenizer(), llm.llm_engine.max_model_len
    prompts = [{"prompt_token_ids": tokenizer.encode(text)[:most]} for text in texts]
    outputs = llm.encode(prompts, pooling_task="embed", use_tqdm=False)
    return np.stack([output.outputs.data for output in outputs])


def best_of(sections: Sequence[Section], scores: np.ndarray, count: int) -> list[int]:
    """The places of the best sections, one of a lab at most."""
    found: dict[str, int] = {}
    for i in np.argsort(-scores, kind="stable").tolist():
        section = sections[i]
        found.setdefault(section.file if "/labs/" in section.file else section.key, i)
        if len(found) == count:
            break
    return list(found.values())


class Index:
    """Sections, their postings, and the vectors of their passages.

    Attributes:
        bm25: over the texts. titles: over the headings alone. owners [passages]: the section of each passage.
        vectors: [passages, 128] float32.
    """

    def __init__(
        self, sections: list[Section], bm25: BM25, titles: BM25, vectors: np.ndarray, owners: np.ndarray
    ) -> None:
        self.sections, self.bm25, self.titles, self.vectors, self.owners = sections, bm25, titles, vectors, owners
        self.firsts = np.searchsorted(owners, np.arange(len(sections)))

    @classmethod
    def build(cls, root: Path, llm: Any = None) -> Index:
        """Read every page, embed every passage: half a minute or more."""
        sections = read_sections(root, pages_to_search(root))
        pieces = [passages_of(section) for section in sections]
        owners = np.repeat(np.arange(len(sections)), [len(each) for each in pieces])
        vectors = embed(llm or make_embedder(root), [text for each in pieces for text in each])
        texts = [spaced(f"{s.title} {s.title} {s.title} {s.page} {s.text}") for s in sections]
        return cls(sections, BM25.of(texts), BM25.of([spaced(s.title) for s in sections]), vectors, owners)

    def similarity(self, question: np.ndarray) -> np.ndarray:
        """[sections]: that of each section's best passage."""
        return np.maximum.reduceat(self.vectors @ question, self.firsts)

    def scores(self, question: str, vector: np.ndarray) -> np.ndarray:
        """[sections]: words, words of headings, and meaning, in shares that `evaluate.py` chose."""
        words = self.bm25.scores(spaced(question))
        words *= 10 / max(float(words.max()), 1e-9)
        intro = np.array([section.title == section.page for section in self.sections])
        return words + MEANING * self.similarity(vector) + HEADINGS * self.titles.scores(spaced(question)) - 3 * intro

    def best(self, scores: np.ndarray, count: int) -> list[int]:
        """The best sections, one of a lab at most."""
        return best_of(self.sections, scores, count)

    def save(self, file: Path, state: str) -> None:
        """Write all of it; `state` tells later whether the pages are still these."""
        file.parent.mkdir(parents=True, exist_ok=True)
        about = [(s.file, s.line, s.title, s.page) for s in self.sections]
        arrays: dict[str, Any] = {
            **_arrays("words", self.bm25), **_arrays("titles", self.titles), "owners": self.owners,
            "vectors": self.vectors.astype(np.float16), "about": _bytes(about), "state": _bytes(state),
        }  # fmt: skip
        with file.open("wb") as out:
            np.savez(out, **arrays)

    @classmethod
    def load(cls, file: Path, state: str) -> Index | None:
        """What `save` wrote; None where there is nothing, or the pages have changed. Sections come without text."""
        if not file.is_file():
            return None
        with np.load(file) as kept:
            if _text(kept["state"]) != state:
                return None
            sections = [Section(name, line, title, page, "") for name, line, title, page in _text(kept["about"])]
            words, titles = (_bm25(name, kept, len(sections)) for name in ("words", "titles"))
            return cls(sections, words, titles, kept["vectors"].astype(np.float32), kept["owners"])


def _arrays(name: str, bm25: BM25) -> dict[str, np.ndarray]:
    parts = {"starts": bm25.starts, "places": bm25.places, "weights": bm25.weights}
    return {**{f"{name}_{key}": value for key, value in parts.items()}, f"{name}_list": _bytes(list(bm25.vocabulary))}


def _bm25(name: str, kept: Any, size: int) -> BM25:
    vocabulary = {word: i for i, word in enumerate(_text(kept[f"{name}_list"]))}
    starts, places, weights = (kept[f"{name}_{key}"] for key in ("starts", "places", "weights"))
    return BM25(vocabulary, starts, places, weights, size)


def state_of(root: Path) -> str:
    """A word that changes with any page's size or time, and with the model."""
    files = [*pages_to_search(root), str(MODEL / "model.safetensors")]
    stats = [(name, (stat := (root / name).stat()).st_size, stat.st_mtime_ns) for name in files]
    return hashlib.sha256(repr((VERSION, stats)).encode()).hexdigest()


def _bytes(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _text(array: np.ndarray) -> Any:
    return json.loads(array.tobytes())
