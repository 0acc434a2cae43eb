"""The index of the course: made from the pages as they are, kept in a file, made anew when a page changes.

A question is scored in two rounds. Words choose `CANDIDATES` sections of all; then pocket-embed reads what it has not
read of these, and words, headings, meaning and the kind of the page are added up with `weights.json`, which
`python -m models.search.weigh` fits to the development questions. So no vector is computed before somebody needs it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.search.bm25 import Postings, words_of
from models.search.sections import Section, pages_to_search, read_sections, spaced

MODEL = Path("models/pocket-embed")
CACHE = Path(".course/ask.npz")
WORDS_A_PASSAGE = 50
PASSAGES_A_SECTION = 12
CANDIDATES = 80
FEATURES = ("section", "passage", "heading", "named", "meaning", "opening", "glossary", "guide", "interview", "lab")
KINDS = {"glossary": "GLOSSARY.md", "guide": "/00-guide.md", "interview": "/INTERVIEW.md", "lab": "/labs/"}
PARTS = ("whole", "passages", "headings")
VERSION = 7


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
    for i in best_order(scores):
        if len(found) == count or scores[i] == -np.inf:
            break
        section = sections[i]
        found.setdefault(section.file if "/labs/" in section.file else section.key, i)
    return list(found.values())


class Index:
    """Sections, their words, and the vectors of those passages that were needed so far.

    Attributes:
        whole, passages, headings: words of sections, of their passages, and of headings (`Postings`).
        owners [passages]: the section of each passage. vectors: [passages, 128] float16. read [sections]: whether the
            vectors of its passages are there.
    """

    def __init__(self, sections: list[Section], postings: Sequence[Postings], owners: np.ndarray) -> None:
        self.sections, self.owners = sections, owners
        self.whole, self.passages, self.headings = postings
        self.vectors = np.zeros((len(owners), 128), np.float16)
        self.read = np.zeros(len(sections), bool)
        self.firsts = np.searchsorted(owners, np.arange(len(sections)))
        self.worths = np.array([self.whole.worth(words_of(section.title)) for section in sections]) + 1e-9
        opening = [float(section.title == section.page) for section in sections]
        kinds = [[float(part in f"/{section.file}") for section in sections] for part in KINDS.values()]
        self.kinds = np.array([opening, *kinds]).T

    @classmethod
    def build(cls, root: Path, files: Sequence[str] | None = None) -> Index:
        """Read every page, or these; some seconds."""
        sections = read_sections(root, pages_to_search(root) if files is None else files)
        titles = [words_of(section.title) for section in sections]
        pieces = [passages_of(section) for section in sections]
        owners = np.repeat(np.arange(len(sections)), [len(each) for each in pieces])
        texts = [words_of(f"{section.page} {section.text}") for section in sections]
        whole = Postings.bm25([3 * title + text for title, text in zip(titles, texts, strict=True)])
        passages = Postings.bm25([words_of(piece) for each in pieces for piece in each], b=0.5)
        return cls(sections, (whole, passages, whole.shared(titles)), owners)

    def read_passages(self, llm: Any, places: Sequence[int]) -> int:
        """Vectors for the passages of these sections, where they are not there yet; how many were made."""
        new = [i for i in places if not self.read[i]]
        if new:
            rows = np.flatnonzero(np.isin(self.owners, new))
            self.vectors[rows] = embed(llm, [text for i in sorted(new) for text in passages_of(self.sections[i])])
            self.read[new] = True
        return len(new)

    def words(self, question: str) -> np.ndarray:
        """[sections, 4]: words in the section, in its best passage, in the heading, and a heading that is all asked."""
        asked = words_of(question)
        shared = self.headings.scores(asked)
        passage = np.maximum.reduceat(self.passages.scores(asked), self.firsts)
        heading = shared / np.sqrt(self.worths * max(self.whole.worth(asked), 1e-9))
        both = (each / max(float(each.max()), 1e-9) for each in (self.whole.scores(asked), passage))
        return np.array([*both, heading, shared > 0.99 * self.worths]).T

    def candidates(self, words: np.ndarray) -> list[int]:
        """The sections that are looked at closely; none, where no word of the question stands anywhere."""
        first = words @ (1, 1, 1, 0)
        return [i for i in best_order(first)[:CANDIDATES] if first[i] > 0]

    def similarity(self, vector: np.ndarray) -> np.ndarray:
        """[sections]: that of each section's best passage; 0 where they have not been read."""
        return np.maximum.reduceat(self.vectors.astype(np.float32) @ vector, self.firsts)

    def features(self, words: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """[sections, FEATURES]."""
        return np.column_stack([words, self.similarity(vector), self.kinds])

    def scores(self, llm: Any, question: str, weights: np.ndarray) -> np.ndarray:
        """[sections]; minus infinity for all but the candidates, whose passages are read."""
        words = self.words(question)
        chosen = self.candidates(words)
        self.read_passages(llm, chosen)
        scores = np.full(len(self.sections), -np.inf)
        scores[chosen] = (self.features(words, embed(llm, [spaced(question)])[0]) @ weights)[chosen]
        return scores

    @classmethod
    def of(cls, root: Path) -> Index:
        """The one that is kept in `.course/`, if it is of these pages; else a new one, said on the error stream."""
        if (kept := cls.load(root / CACHE, state_of(root))) is not None:
            return kept
        print("ask: reads all pages, since none were read before or one has changed; some seconds …", file=sys.stderr)
        return cls.build(root)

    def keep(self, root: Path) -> None:
        """Keep it, with the vectors that were made so far, for the next question."""
        self.save(root / CACHE, state_of(root))

    def save(self, file: Path, state: str) -> None:
        """Write all of it; `state` tells later whether the pages are still these."""
        file.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {
            "state": _bytes(state), "owners": self.owners, "vectors": self.vectors, "read": self.read,
            "sections": _bytes([(s.file, s.line, s.title, s.page, s.text) for s in self.sections]),
        }  # fmt: skip
        for name, part in zip(PARTS, (self.whole, self.passages, self.headings), strict=True):
            arrays |= {f"{name}_{key}": getattr(part, key) for key in ("starts", "places", "weights", "rarity")}
            arrays[f"{name}_list"] = _bytes([part.size, *part.vocabulary])
        part = file.with_suffix(".part")
        with part.open("wb") as out:
            np.savez(out, **arrays)
        part.replace(file)

    @classmethod
    def load(cls, file: Path, state: str) -> Index | None:
        """What `save` wrote; None where there is nothing that can be read, or the pages have changed."""
        try:
            with np.load(file) as kept:
                if _text(kept["state"]) != state:
                    return None
                sections = [Section(*row) for row in _text(kept["sections"])]
                index = cls(sections, [_postings(name, kept) for name in PARTS], kept["owners"])
                index.vectors, index.read = kept["vectors"], kept["read"]
                return index
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None


def with_terms(sections: Sequence[Section], found: Sequence[int], question: str, order: Sequence[int]) -> list[int]:
    """The places that were found, the last of them given up for entries of the glossary that the question names by one
    word in any of its forms: who asks when a block is *evicted* finds *Eviction*. The first place always stays."""
    asked = {_root(word) for word in words_of(question)}
    terms = [i for i in order if sections[i].file == KINDS["glossary"]]
    named = [i for i in terms if len(words := words_of(sections[i].title)) == 1 and _root(words[0]) in asked]
    missing = [i for i in named if i not in found][: max(len(found) - 1, 0)]
    kept = list(found)
    for i in missing:
        given_up = [at for at in range(1, len(kept)) if kept[at] not in named]
        if given_up:
            kept[given_up[-1]] = i
    return kept


def _root(stem: str) -> str:
    """What calibrate and calibration, verify and verification have in common beyond their stems."""
    return re.sub(r"(?<=.{3})(?:at|y|(?<=if)ic)$", "", stem)


def best_order(scores: np.ndarray) -> list[int]:
    """All places, the best first; equal ones as they stand in the course."""
    return np.argsort(-scores, kind="stable").tolist()


def weights_of(root: Path) -> np.ndarray:
    """[FEATURES], of `weights.json`."""
    kept = json.loads((root / MODEL / "weights.json").read_text(encoding="utf-8"))
    return np.array([kept["weights"][name] for name in FEATURES])


def _postings(name: str, kept: Any) -> Postings:
    size, *words = _text(kept[f"{name}_list"])
    arrays = (kept[f"{name}_{key}"] for key in ("starts", "places", "weights", "rarity"))
    return Postings({word: i for i, word in enumerate(words)}, *arrays, size)


def state_of(root: Path) -> str:
    """A word that changes with any page's size or time, and with the model."""
    files = [*pages_to_search(root), str(MODEL / "model.safetensors")]
    stats = [(name, (stat := (root / name).stat()).st_size, stat.st_mtime_ns) for name in files]
    return hashlib.sha256(repr((VERSION, stats)).encode()).hexdigest()


def _bytes(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _text(array: np.ndarray) -> Any:
    return json.loads(array.tobytes())
