"""BM25: how much of a question's rare words a section has (Robertson and Zaragoza, 2009,
https://www.staff.city.ac.uk/~sbrp622/papers/foundations_bm25_review.pdf)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset("""
    a an the of to in on at by for from with and or is are was be been it its this that these those as i my me we you
    your how what why when which who where do does did can could should would will not no if then than so there
""".split())  # noqa: SIM905 # fmt: skip
_ENDS = ("ations", "ation", "ingly", "ings", "ing", "ied", "ies", "ers", "er", "ed", "es", "ly", "s", "e")


def words_of(text: str) -> list[str]:
    """Small letters, without the commonest words, each cut to its stem by a few endings."""
    return [_stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP]


def _stem(word: str) -> str:
    for end in _ENDS:
        if word.endswith(end) and len(word) - len(end) >= 3:
            word = word[: -len(end)]
            return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word
    return word


class BM25:
    """Postings as flat arrays, so that they are read from a file at once.

    Attributes:
        vocabulary: word -> its number. starts [words + 1], places, weights [postings]: the sections of each word, and
            what the word is worth there.
    """

    def __init__(self, vocabulary: dict[str, int], starts: Any, places: Any, weights: Any, size: int) -> None:
        self.vocabulary, self.starts, self.places, self.weights, self.size = vocabulary, starts, places, weights, size

    @classmethod
    def of(cls, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> BM25:
        """Count the words of all texts. k1: how fast more of a word stops to count; b: how much length counts."""
        vocabulary: dict[str, int] = {}
        found: list[tuple[int, int, int]] = []
        lengths = np.zeros(len(texts))
        for place, text in enumerate(texts):
            counts: dict[str, int] = {}
            for word in words_of(text):
                counts[word] = counts.get(word, 0) + 1
            lengths[place] = sum(counts.values())
            found += [(vocabulary.setdefault(word, len(vocabulary)), place, n) for word, n in counts.items()]
        numbers, places, counted = (np.array(column) for column in zip(*sorted(found), strict=True))
        in_places = np.bincount(numbers, minlength=len(vocabulary))
        rarity = np.log(1 + (len(texts) - in_places + 0.5) / (in_places + 0.5))
        norm = k1 * (1 - b + b * lengths / lengths.mean())
        weights = rarity[numbers] * counted * (k1 + 1) / (counted + norm[places])
        starts = np.concatenate([[0], np.cumsum(in_places)])
        return cls(vocabulary, starts, places.astype(np.int32), weights.astype(np.float32), len(texts))

    def scores(self, question: str) -> np.ndarray:
        """[sections]."""
        total = np.zeros(self.size, np.float32)
        for word in set(words_of(question)):
            number = self.vocabulary.get(word)
            if number is not None:
                span = slice(self.starts[number], self.starts[number + 1])
                total[self.places[span]] += self.weights[span]
        return total
