"""BM25: how much of a question's rare words a text has (Robertson and Zaragoza, 2009,
https://www.staff.city.ac.uk/~sbrp622/papers/foundations_bm25_review.pdf)."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from models.search.sections import spaced

_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset("""
    a an the of to in on at by for from with and or is are was be been it its this that these those as i my me we you
    your how what why when which who where do does did can could should would will not no if then than so there
""".split())  # noqa: SIM905 # fmt: skip
_ENDS = ("ations", "ation", "ingly", "ings", "ing", "ied", "ies", "ers", "er", "ed", "es", "ly", "s", "e")
_DONE = re.compile(r"(?<=.{3}[^a][st])ions?$")
"""Of a noun that says what a verb does: who asks why a request is preempted finds preemption."""
_ADMIT = re.compile(r"(?<=..)mit$")
_BRITISH = (re.compile(r"(?<=..)is(?=(?:e[sdr]?|ing|ations?)$)"), re.compile(r"(?<=...)our(?=(?:s|ed|al)?$)"))


def words_of(text: str) -> list[str]:
    """Small letters, names of code in words, without the commonest words; each is its stem, in American spelling."""
    return [_stem(word) for word in _WORD.findall(spaced(text).lower()) if word not in _STOP]


@functools.cache
def _stem(word: str) -> str:
    for pattern, instead in zip(_BRITISH, ("iz", "or"), strict=True):
        word = pattern.sub(instead, word)
    if (done := _DONE.sub("", word)) != word:
        return done[:-1] if done[-1] == done[-2] else done
    for end in _ENDS:
        if word.endswith(end) and len(word) - len(end) >= 3:
            word = word[: -len(end)]
            word = word[:-1] if len(word) > 3 and word[-1] == word[-2] else word
            break
    return _ADMIT.sub("mis", word)  # as of admission, which loses its "ion" and one "s"


class Postings:
    """What each word is worth in each text, as flat arrays, so that they are read from a file at once.

    Attributes:
        vocabulary: word -> its number. starts [words + 1], places, weights [postings]: the texts of each word, and
            what the word is worth there. rarity [words]: the word's own weight. size: how many texts there are.
    """

    def __init__(
        self, vocabulary: dict[str, int], starts: Any, places: Any, weights: Any, rarity: Any, size: int
    ) -> None:
        self.vocabulary, self.starts, self.places, self.weights = vocabulary, starts, places, weights
        self.rarity, self.size = rarity, size

    @classmethod
    def bm25(cls, texts: Sequence[Sequence[str]], k1: float = 1.2, b: float = 0.75) -> Postings:
        """Of texts in words. k1: how fast more of a word stops to count; b: how much length counts."""
        counts = [Counter(text) for text in texts]
        vocabulary = {word: i for i, word in enumerate(dict.fromkeys(chain.from_iterable(counts)))}
        sizes = [len(each) for each in counts]
        numbers = np.fromiter(map(vocabulary.__getitem__, chain.from_iterable(counts)), np.int32, sum(sizes))
        counted = np.fromiter(chain.from_iterable(each.values() for each in counts), np.float32, len(numbers))
        places = np.repeat(np.arange(len(texts), dtype=np.int32), sizes)
        order = np.argsort(numbers, kind="stable")
        in_places = np.bincount(numbers, minlength=len(vocabulary))
        rarity = np.log(1 + (len(texts) - in_places + 0.5) / (in_places + 0.5)).astype(np.float32)
        lengths = np.array([len(text) for text in texts])
        norm = k1 * (1 - b + b * lengths / lengths.mean())
        weights = rarity[numbers] * counted * (k1 + 1) / (counted + norm[places])
        starts = np.concatenate([[0], np.cumsum(in_places)])
        return cls(vocabulary, starts, places[order], weights[order].astype(np.float32), rarity, len(texts))

    def shared(self, texts: Sequence[Sequence[str]]) -> Postings:
        """Of other texts: a word is worth its rarity here, once a text."""
        flat = Postings.bm25([sorted({w for w in text if w in self.vocabulary}) for text in texts])
        worth = np.array([self.rarity[self.vocabulary[word]] for word in flat.vocabulary], np.float32)
        weights = np.repeat(worth, np.diff(flat.starts))
        return Postings(flat.vocabulary, flat.starts, flat.places, weights, worth, flat.size)

    def scores(self, words: Iterable[str]) -> np.ndarray:
        """[texts]; a word counts once."""
        total = np.zeros(self.size, np.float32)
        for word in set(words):
            number = self.vocabulary.get(word)
            if number is not None:
                span = slice(self.starts[number], self.starts[number + 1])
                total[self.places[span]] += self.weights[span]
        return total

    def worth(self, words: Iterable[str]) -> float:
        """What these words are worth together; one that is not known is as rare as a word can be."""
        numbers = [self.vocabulary.get(word) for word in set(words)]
        return float(sum(np.log(2 * self.size + 2) if n is None else self.rarity[n] for n in numbers))
