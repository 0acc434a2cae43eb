"""Held-out questions by kind: pictures of seeds that training never uses, and pairs, numbers, words and wordings that
it never shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from models.training.pocket_vl import questions as q
from models.training.pocket_vl.conversations import (
    CHAT,
    NO_PICTURE,
    Chat,
    draw_number,
    draw_word,
    with_pictures,
)
from models.training.pocket_vl.pictures import Picture, draw_large, draw_shapes
from models.training.pocket_vl.questions import Turn

SEED = 9_000_000
"""Training takes [seed of the run, batch] with runs far below; suites take [SEED, suite, case]."""
COUNT = 500
Rng = np.random.Generator
Ask = Callable[[Rng, Picture], Turn | None]


@dataclass(frozen=True)
class Case:
    """Messages up to the question, its pictures, and the one right answer."""

    messages: list[tuple[str, str]]
    expected: str
    pictures: list[Picture] = field(default_factory=list)

    @property
    def chat(self) -> Chat:
        """With the answer."""
        return Chat([*self.messages, ("assistant", self.expected)], self.pictures)


def _one(
    draw: Callable[[Rng], Picture], ask: Ask, held_out: bool = False, brief: bool = False
) -> Callable[[Rng], Case]:
    """Cases with one picture. held_out: the wording is one that training never uses."""

    def make(rng: Rng) -> Case:
        while True:
            picture = draw(rng)
            turn = ask(rng, picture)
            if turn is None or (brief and turn.brief == turn.answer):
                continue
            text = turn.wording(rng, held_out) + (q.BRIEF[rng.integers(len(q.BRIEF))] if brief else "")
            return Case([("user", f"<image>\n{text}")], turn.brief if brief else turn.answer, [picture])

    return make


def _several(kind: str) -> Callable[[Rng], Case]:
    def make(rng: Rng) -> Case:
        count = 2 if rng.random() < 0.75 else 3
        while True:
            pictures = [draw_shapes(rng, most=4) for _ in range(count)]
            turn = q.ask_several(rng, pictures)
            if turn.kind == kind:
                return Case([("user", with_pictures(rng, turn.wording(rng), count))], turn.answer, pictures)

    return make


def _chat(rng: Rng) -> Case:
    if rng.random() < 0.5:
        wordings, answer = CHAT[rng.integers(len(CHAT))]
        return Case([("user", wordings[rng.integers(len(wordings))])], answer)
    return Case([("user", q.ask(rng, _any_shapes(rng)).wording(rng))], NO_PICTURE)


def _any_shapes(rng: Rng) -> Picture:
    return draw_shapes(rng) if rng.random() < 0.8 else draw_large(rng)


def _any(rng: Rng) -> Picture:
    way = rng.random()
    return _any_shapes(rng) if way < 0.7 else _digit(rng) if way < 0.85 else draw_word(rng)


def _new_pair(rng: Rng) -> Picture:
    return draw_large(rng, held_out=True)


def _digit(rng: Rng) -> Picture:
    return draw_number(rng, 1)


def _number(rng: Rng) -> Picture:
    return draw_number(rng, int(rng.integers(2, 4)), held_out=True)


def _text(rng: Rng) -> Picture:
    return _digit(rng) if rng.random() < 0.3 else draw_word(rng)


def _new_word(rng: Rng) -> Picture:
    return draw_word(rng, held_out=True)


def _spelling(kind: str) -> Ask:
    def ask(rng: Rng, picture: Picture) -> Turn | None:
        turn = q.spelling(rng, picture)
        return turn if turn is not None and turn.kind == kind else None

    return ask


MAKERS: dict[str, Callable[[Rng], Case]] = {
    "colour": _one(_any_shapes, q.colour),
    "shape": _one(_any_shapes, q.shape),
    "count": _one(draw_shapes, q.count),
    "digit": _one(_digit, q.read),
    "number": _one(_number, q.read),
    "word": _one(_new_word, q.read),
    "relation": _one(draw_shapes, q.relation),
    "exists": _one(_any_shapes, q.exists),
    "where": _one(draw_shapes, q.where),
    "at": _one(draw_shapes, q.at),
    "background": _one(_any_shapes, q.background),
    "ink": _one(_text, q.ink),
    "first_letter": _one(_new_word, _spelling("first")),
    "letters": _one(_new_word, _spelling("letters")),
    "describe": _one(_any, q.describe),
    "colour_new_pair": _one(_new_pair, q.colour),
    "shape_new_pair": _one(_new_pair, q.shape),
    "more": _several("more"),
    "which": _several("which"),
    "together": _several("together"),
    "brief": _one(_any, q.ask, brief=True),
    "new_wording": _one(_any, q.ask, held_out=True),
    "no_picture": _chat,
}


def suite(name: str, count: int = COUNT) -> list[Case]:
    """The first `count` cases of a kind; each has a seed of its own."""
    place = list(MAKERS).index(name)
    return [MAKERS[name](np.random.default_rng([SEED, place, case])) for case in range(count)]
