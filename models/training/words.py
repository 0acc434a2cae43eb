"""Word lists of the generators: all our own, grouped by use; each `HELD_OUT_*` list never occurs in training."""

from __future__ import annotations

import random

from models.training.wordings import load

_W = load("words")
NAMES: list[str] = _W["NAMES"]

HELD_OUT_NAMES: list[str] = _W["HELD_OUT_NAMES"]

CITIES: list[str] = _W["CITIES"]

HELD_OUT_CITIES: list[str] = _W["HELD_OUT_CITIES"]

HEROES: list[str] = _W["HEROES"]

OBJECTS: list[str] = _W["OBJECTS"]

PLACES: list[str] = _W["PLACES"]

ADJECTIVES: list[str] = _W["ADJECTIVES"]

OBJECT_ADJECTIVES: list[str] = _W["OBJECT_ADJECTIVES"]

THINGS: list[str] = _W["THINGS"]

QUERIES: list[str] = _W["QUERIES"]

HELD_OUT_QUERIES: list[str] = _W["HELD_OUT_QUERIES"]

LANGUAGES: list[str] = _W["LANGUAGES"]

PHRASES: list[str] = _W["PHRASES"]

HELD_OUT_PHRASES: list[str] = _W["HELD_OUT_PHRASES"]

DEVICES: list[str] = _W["DEVICES"]

NUMBER_WORDS: list[str] = _W["NUMBER_WORDS"]

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

FOREIGN: list[str] = _W["FOREIGN"]

HELD_OUT_FOREIGN: list[str] = _W["HELD_OUT_FOREIGN"]

TECH_HEADS: list[str] = _W["TECH_HEADS"]

SYLLABLES: list[str] = _W["SYLLABLES"]


VOWELS, CONSONANTS = "aeiouy", "bcdfghjklmnpqrstvwxz"


def invented_word(rng: random.Random, low: int = 2, high: int = 4) -> str:
    """A lower-case word that no list holds, of syllables or of letters: teaches copying, and not knowing."""
    if rng.random() < 0.5:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(low, high)))
    parts = []
    for _ in range(rng.randint(1, 3)):
        parts.append(
            rng.choice(CONSONANTS) * (rng.random() < 0.85)
            + rng.choice(VOWELS) * rng.choice([1, 1, 1, 2])
            + rng.choice(CONSONANTS) * rng.choice([0, 1, 1, 2])
        )
    return "".join(parts)


def altered(rng: random.Random, word: str) -> str:
    """A real word with a letter changed, lost, added, or with an ending: near to words, and not one that is known."""
    i = rng.randrange(len(word))
    letter = rng.choice(CONSONANTS + VOWELS)
    return rng.choice(
        [
            word[:i] + letter + word[i + 1 :],
            word[:i] + word[i + 1 :] or word,
            word[:i] + letter + word[i:],
            word + rng.choice(["s", "a", "er", "in", "o", "ing", "burg", "ville", "ton"]),
        ]
    )
