"""Chats about pictures: a picture or several, then questions; and a few without a picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from models.training.pocket_vl.layout import IMAGE
from models.training.pocket_vl.pictures import Picture, draw_large, draw_shapes, draw_text
from models.training.pocket_vl.questions import BRIEF, Turn, ask, ask_several
from models.training.wordings import load

_W = load("pocket_vl")
CHAT: list[tuple[list[str], str]] = _W["CHAT"]
NO_PICTURE: str = _W["NO_PICTURE"]
WORDS: list[str] = _W["WORDS"].split()
HELD_OUT_WORDS: list[str] = _W["HELD_OUT_WORDS"].split()
HELD_OUT_NUMBERS = frozenset(range(3, 1000, 17))
"""Two- and three-digit numbers among them are never shown in training."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_TURNS = 10


@dataclass
class Chat:
    """Messages as (role, content), `<image>` where a picture stands, and the pictures in that order."""

    messages: list[tuple[str, str]] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


def draw_number(rng: np.random.Generator, digits: int, held_out: bool = False) -> Picture:
    """A number of one to three digits without leading zeros."""
    low = 10 ** (digits - 1) if digits > 1 else 0
    while True:
        number = int(rng.integers(low, 10**digits))
        if digits == 1 or (number in HELD_OUT_NUMBERS) == held_out:
            return draw_text(rng, "number", str(number))


def draw_word(rng: np.random.Generator, held_out: bool = False) -> Picture:
    """A word of the list; in training half of them are letters by chance, so that it has to be read."""
    if held_out:
        word = HELD_OUT_WORDS[rng.integers(len(HELD_OUT_WORDS))]
    elif rng.random() < 0.5:
        word = WORDS[rng.integers(len(WORDS))]
    else:
        while True:
            word = "".join(LETTERS[i] for i in rng.integers(26, size=rng.integers(3, 7)))
            if word not in HELD_OUT_WORDS:
                break
    return draw_text(rng, "word", word)


def draw(rng: np.random.Generator) -> Picture:
    """Any picture, as often as training shows it."""
    way = rng.random()
    if way < 0.50:
        return draw_shapes(rng)
    if way < 0.62:
        return draw_large(rng)
    if way < 0.78:
        return draw_number(rng, int(rng.integers(1, 4)))
    return draw_word(rng)


def user_says(rng: np.random.Generator, question: str, brief: bool) -> str:
    """The question as people type it: with a request to be brief, American, in small letters, without the mark."""
    if rng.random() < 0.25:
        question = question.replace("colour", "color")
    if rng.random() < 0.12:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.12 and not brief:
        question = question.rstrip("?.")
    return question + (BRIEF[rng.integers(len(BRIEF))] if brief else "")


def with_pictures(rng: np.random.Generator, text: str, count: int) -> str:
    """Pictures stand before the question, each on a line; one in twelve times behind it."""
    marks = [IMAGE] * count
    return "\n".join([text, *marks] if rng.random() < 1 / 12 else [*marks, text])


def make_chat(rng: np.random.Generator, pictures: int) -> Chat:
    """A chat with so many pictures, 0 to 3, and up to `MAX_TURNS` questions; training cuts it where its room ends."""
    if pictures == 0:
        return without_picture(rng)
    if pictures == 1:
        chat = Chat(pictures=[draw(rng)])
        turns = once(ask(rng, chat.pictures[0]) for _ in range(MAX_TURNS))
    else:
        chat = Chat(pictures=[draw_shapes(rng, most=4) for _ in range(pictures)])
        turns = once(ask_several(rng, chat.pictures) for _ in range(3))
    for i, turn in enumerate(turns):
        add_turn(rng, chat, turn, pictures if i == 0 else 0)
    return chat


def once(turns: Iterable[Turn]) -> list[Turn]:
    """Each question once: an answer is to come from the picture, not from the turn before."""
    return list({(turn.kind, *turn.slots.values()): turn for turn in turns}.values())


def add_turn(rng: np.random.Generator, chat: Chat, turn: Turn, pictures: int) -> None:
    """One question, one third of them to be answered briefly, and its answer."""
    brief = rng.random() < 0.33 and turn.brief != turn.answer
    text = user_says(rng, turn.wording(rng), brief)
    chat.messages += [
        ("user", with_pictures(rng, text, pictures) if pictures else text),
        ("assistant", turn.brief if brief else turn.answer),
    ]


def without_picture(rng: np.random.Generator) -> Chat:
    """Small talk, or a question about a picture that is not there."""
    chat = Chat()
    for _ in range(4):
        if rng.random() < 0.5:
            questions, answer = CHAT[rng.integers(len(CHAT))]
            chat.messages += [("user", questions[rng.integers(len(questions))]), ("assistant", answer)]
        else:
            question = ask(rng, draw(rng)).wording(rng)
            chat.messages += [("user", user_says(rng, question, False)), ("assistant", NO_PICTURE)]
    return chat
