"""Small talk, identity, jokes, and the honest answer to what the model does not know."""

from __future__ import annotations

import random

from models.training import glossary, words
from models.training.glossary import load_glossary
from models.training.wordings import load

_W = load("smalltalk")
IDENTITY: str = _W["IDENTITY"]
ABILITIES: str = _W["ABILITIES"]
UNKNOWN: str = _W["UNKNOWN"]
LISTENING: str = _W["LISTENING"]
TALK: list[tuple[list[str], list[str]]] = [(entry["asks"], entry["answers"]) for entry in _W["TALK"]]
STATEMENTS: list[str] = _W["STATEMENTS"]
JOKES: list[str] = _W["JOKES"]
ASK_JOKE: list[str] = _W["ASK_JOKE"]
UNKNOWN_ASKS: list[str] = _W["UNKNOWN_ASKS"]
WORLD_ASKS: list[str] = _W["WORLD_ASKS"]


def talk_turn(rng: random.Random) -> tuple[str, str]:
    """Small talk, or a joke."""
    if rng.random() < 0.1:
        return rng.choice(ASK_JOKE), rng.choice(JOKES)
    asks, answers = TALK[0] if rng.random() < 0.08 else rng.choice(TALK)
    return rng.choice(asks), rng.choice(answers)


def unknown_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str]:
    """Something outside the course: foreign terms, invented words, known words put together wrongly, the wide world."""
    kind = rng.random()
    if not held_out and rng.random() < 0.06:
        return rng.choice(STATEMENTS).format(
            x=rng.choice([*words.THINGS, *words.FOREIGN]), c=rng.choice(words.CITIES), n=rng.choice(words.NAMES)
        ), LISTENING
    if held_out:
        return rng.choice(UNKNOWN_ASKS).format(
            x=rng.choice(words.HELD_OUT_FOREIGN), y=rng.choice(words.HELD_OUT_FOREIGN)
        ), UNKNOWN
    if kind < 0.28:
        slots = {
            "c": rng.choice(words.CITIES),
            "n": rng.choice(words.NAMES),
            "f": rng.choice(words.THINGS),
            "o": rng.choice(words.OBJECTS),
            "x": rng.choice(words.FOREIGN),
            "l": rng.choice(words.LANGUAGES),
            "d": rng.choice(words.DEVICES),
        }
        return rng.choice(WORLD_ASKS).format(**slots), UNKNOWN
    if kind < 0.62:
        thing = rng.choice(words.FOREIGN)
    elif kind < 0.7:
        thing = rng.choice(glossary.fillers())
    elif kind < 0.78:
        thing = rng.choice([*words.THINGS, *words.OBJECTS, *words.HEROES])
    elif kind < 0.9:
        thing = " ".join(words.invented_word(rng) for _ in range(rng.choice([1, 1, 2, 3])))
    else:
        thing = f"{rng.choice([*words.THINGS, *words.HEROES, *words.OBJECTS])} {rng.choice(words.TECH_HEADS)}"
    ask = rng.choice(UNKNOWN_ASKS).format(x=rng.choice([thing, thing.capitalize(), thing]), y=rng.choice(words.FOREIGN))
    return ask, UNKNOWN


def surprise_turn(rng: random.Random) -> tuple[str, str]:
    """ "Teach me something": a term of the model's choice."""
    ask = rng.choice(
        [
            "Teach me something.",
            "Tell me something interesting.",
            "Tell me a fact.",
            "Surprise me.",
            "Give me a term.",
            "Explain any term.",
            "Pick a term and explain it.",
            "What should I learn today?",
            "Tell me anything.",
        ]
    )
    return ask, rng.choice(load_glossary()).answer


def quiz_turns(rng: random.Random) -> list[tuple[str, str]]:
    """The model asks for a term, the user guesses, the model judges."""
    terms = [t for t in load_glossary() if t.clue]
    turns = []
    ask = rng.choice(
        ["Quiz me.", "Give me a quiz.", "Ask me a question.", "Test me.", "Quiz", "Let us do a quiz.", "Examine me."]
    )
    for _ in range(rng.choice([1, 1, 2, 3])):
        right, wrong = rng.sample(terms, 2)
        turns.append((ask, f"Which term is this: it {right.clue}"))
        reply = rng.choice(
            ["{x}", "{x}", "{x}?", "I think it is {x}.", "Is it {x}?", "It is {x}.", "{x}!", "Maybe {x}"]
        )
        kind = rng.random()
        if kind < 0.5:
            turns.append((reply.format(x=right.name), f"Right! {right.answer}"))
        elif kind < 0.8:
            turns.append((reply.format(x=wrong.name), f"Not quite. It is {right.article}{right.name}."))
        else:
            turns.append(
                (
                    rng.choice(["I do not know.", "No idea.", "Tell me.", "I give up."]),
                    f"It is {right.article}{right.name}.",
                )
            )
        ask = rng.choice(["Another one.", "Next.", "Again.", "One more.", "Quiz me again."])
    return turns
