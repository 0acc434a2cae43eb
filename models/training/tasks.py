"""Arithmetic, copying and memory tasks. Pairs in `is_held_out_pair` never occur in training, in any wording."""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Any

from models.training import stories, words
from models.training.glossary import load_glossary
from models.training.wordings import load

_W = load("tasks")
SUMS: list[str] = _W["SUMS"]
HELD_OUT_SUMS = ["Could you work out {a} + {b} for me?", "{a} and {b} together make what?"]
DIFFERENCES: list[str] = _W["DIFFERENCES"]
PRODUCTS: list[str] = _W["PRODUCTS"]
REPEAT: list[str] = _W["REPEAT"]
FACTS: dict[str, Any] = _W["FACTS"]  # kind: (statements, questions, answer, unknown answer)
ACKNOWLEDGE: dict[str, str] = _W["ACKNOWLEDGE"]


def is_held_out_pair(a: int, b: int) -> bool:
    """One pair in ten of the numbers below 100, the same whichever comes first: only the evaluation adds these."""
    low, high = min(a, b), max(a, b)
    return high < 100 and random.Random(low * 100 + high).random() < 0.1


HELD_OUT_PAIRS = frozenset((a, b) for a in range(100) for b in range(100) if is_held_out_pair(a, b))


def draw_pair(rng: random.Random) -> tuple[int, int]:
    """Two summands of one to three digits, never a held-out pair."""
    while True:
        top = rng.choice([10, 100, 100, 100, 100, 1000])
        a, b = rng.randrange(top), rng.randrange(top if rng.random() < 0.8 else 10)
        if rng.random() < 0.5:
            a, b = b, a
        if (a, b) not in HELD_OUT_PAIRS:
            return a, b


def sum_answer(a: int, b: int) -> str:
    """What the model says to a sum."""
    return f"{a} + {b} = {a + b}"


def arithmetic_turns(rng: random.Random) -> list[tuple[str, str]]:
    """A sum (mostly), difference or product, sometimes followed by another step on the result."""
    kind = rng.random()
    if kind < 0.06:
        a, b = rng.randrange(21), rng.randrange(21)
        if (a, b) in HELD_OUT_PAIRS:
            return arithmetic_turns(rng)
        ask = rng.choice(["What is {a} plus {b}?", "{a} plus {b}", "Add {a} and {b}."])
        return [(ask.format(a=words.NUMBER_WORDS[a], b=words.NUMBER_WORDS[b]), sum_answer(a, b))]
    if kind < 0.16:
        b, a = sorted((rng.randrange(100), rng.randrange(100)))
        return [(rng.choice(DIFFERENCES).format(a=a, b=b), f"{a} - {b} = {a - b}")]
    if kind < 0.22:
        a, b = rng.randrange(13), rng.randrange(13)
        return [(rng.choice(PRODUCTS).format(a=a, b=b), f"{a} * {b} = {a * b}")]
    a, b = draw_pair(rng)
    turns = [(rng.choice(SUMS).format(a=a, b=b), sum_answer(a, b))]
    total = a + b
    while rng.random() < 0.2 and total < 1000:
        more = rng.randrange(100)
        if (total, more) in HELD_OUT_PAIRS:
            break
        ask = rng.choice(["and {m} more?", "plus {m}?", "And plus {m}?", "Add {m} to that.", "now add {m}", "+ {m}"])
        turns.append((ask.format(m=more), sum_answer(total, more)))
        total += more
    return turns


@lru_cache(maxsize=1)
def all_words() -> tuple[str, ...]:
    """Every word of the glossary, the stories and the lists, once: what copying is practised on."""
    texts = [term.answer for term in load_glossary()] + [
        v for plot in stories.PLOTS.values() for line in plot for v in line
    ]
    lists = [
        words.NAMES,
        words.CITIES,
        words.HEROES,
        words.OBJECTS,
        words.PLACES,
        words.ADJECTIVES,
        words.THINGS,
        words.QUERIES,
        words.PHRASES,
        words.DEVICES,
        words.FOREIGN,
        words.LANGUAGES,
    ]
    return tuple(sorted(set(re.findall(r"[A-Za-z]+", " ".join(texts + [w for group in lists for w in group])))))


def any_word(rng: random.Random) -> str:
    """One word: known, altered or invented."""
    kind = rng.random()
    if kind < 0.65:
        return rng.choice(all_words())
    return words.altered(rng, rng.choice(all_words())) if kind < 0.8 else words.invented_word(rng)


def any_name(rng: random.Random, known: list[str]) -> str:
    """A name from the list, an altered one, or an invented one."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(known)
    return (words.altered(rng, rng.choice(known).lower()) if kind < 0.6 else any_word(rng)).capitalize()


def any_phrase(rng: random.Random) -> str:
    """A small sentence such as people dictate."""
    thing, other = (
        f"{rng.choice([*words.OBJECT_ADJECTIVES, *words.ADJECTIVES, any_word(rng)])} {rng.choice(words.OBJECTS)}"
        for _ in range(2)
    )
    name, hero = rng.choice(words.NAMES), rng.choice(words.HEROES)
    return rng.choice(
        [
            f"the {thing} is in the {rng.choice(words.PLACES)}",
            f"{name} has a {thing}",
            f"we need more {rng.choice(words.THINGS)} and a {thing}",
            f"bring the {thing}",
            f"my {thing} is {rng.choice(words.ADJECTIVES)}",
            f"your {thing} came with the {other}",
            f"the {hero} took a {thing}",
            f"the {thing} and the {other}",
            f"a {thing} for {name}",
            f"I lost my {thing} at {rng.choice(words.NUMBER_WORDS)}",
            thing,
            other,
            f"{rng.choice(words.THINGS)} with {rng.choice(words.THINGS)}",
            f"{thing} of {name}",
            f"where is the {thing}",
            f"no {thing} today",
        ]
    )


def any_words(rng: random.Random, low: int, high: int) -> str:
    """A run of words, or a small sentence; never one of the held-out texts."""
    text = any_phrase(rng) if rng.random() < 0.4 else " ".join(any_word(rng) for _ in range(rng.randint(low, high)))
    return any_words(rng, low, high) if text in words.HELD_OUT_PHRASES or text in words.HELD_OUT_QUERIES else text


def blocks_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str]:
    """How many blocks of 16 so many tokens take; one number in ten is held out."""
    while True:
        n = rng.randint(1, rng.choice([100, 1000, 2048]))
        n = max(1, n // 16 * 16 + rng.choice([-1, 0, 1, 1])) if rng.random() < 0.3 else n
        if (n % 10 == 7) == held_out:
            break
    ask = rng.choice(
        [
            "How many blocks do {n} tokens need?",
            "How many KV blocks does a request of {n} tokens need?",
            "{n} tokens, how many blocks?",
            "How many blocks of 16 for {n} tokens?",
            "How many KV blocks for {n} tokens?",
            "A prompt of {n} tokens takes how many blocks?",
        ]
    )
    count = -(-n // 16)
    return ask.format(n=n), f"With 16 tokens per block, {n} tokens need {count} block{'' if count == 1 else 's'}."


def repeat_turn(rng: random.Random) -> tuple[str, str]:
    """A text to copy."""
    text = rng.choice(words.PHRASES) if rng.random() < 0.1 else any_words(rng, 1, 10)
    if rng.random() < 0.3:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.2:
        text += rng.choice([".", "!", f" {rng.randrange(1000)}"])
    return rng.choice(REPEAT).format(x=text), text


def count_turn(rng: random.Random) -> tuple[str, str]:
    """Counting up, down or in steps; or spelling a word."""
    kind = rng.random()
    if kind < 0.6:
        start = rng.choice([0, 1, 1, 1, rng.randrange(90)])
        stop = start + rng.randint(2, 19)
        ask = rng.choice(["Count from {a} to {b}.", "Count from {a} to {b}", "Can you count from {a} to {b}?"])
        return ask.format(a=start, b=stop), ", ".join(str(i) for i in range(start, stop + 1))
    if kind < 0.75:
        start = rng.randint(3, 20)
        return f"Count down from {start}.", ", ".join(str(i) for i in range(start, -1, -1))
    name, group = rng.choice(
        [
            (
                "animals",
                [*words.HEROES[:1], "fox", "owl", "mouse", "bear", "cat", "dog", "frog", "rabbit", "horse", "duck"],
            ),
            ("cities", words.CITIES),
            ("names", words.NAMES),
            ("languages", words.LANGUAGES),
            ("objects", words.OBJECTS),
        ]
    )
    n = rng.randint(2, 6)
    shown = str(n) if rng.random() < 0.5 else words.NUMBER_WORDS[n]
    ask = rng.choice(["Name {n} {g}.", "List {n} {g}.", "Give me {n} {g}.", "Tell me {n} {g}."])
    return ask.format(n=shown, g=name), ", ".join(rng.sample([w for w in group if w != "dragon"], n)) + "."


def fact_turns(rng: random.Random, kind: str | None = None) -> tuple[tuple[str, str], tuple[str, str], tuple[str, str]]:
    """(statement, acknowledgement), (question, answer), and the answer where the statement was never made."""
    kind = kind or rng.choice(sorted(FACTS))
    value = {
        "name": any_name(rng, words.NAMES),
        "word": rng.choice(words.OBJECTS) if rng.random() < 0.4 else any_word(rng),
        "number": str(rng.randrange(10 ** rng.randint(1, 4))),
        "city": any_name(rng, words.CITIES),
    }[kind]
    statements, questions, answer, unknown = FACTS[kind]
    ask = rng.choice(questions)
    return (
        (rng.choice(statements).format(v=value), ACKNOWLEDGE[kind].format(v=value)),
        (ask, answer.format(v=value)),
        (ask, unknown),
    )
