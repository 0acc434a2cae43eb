"""Questions about a picture and their answers: each kind has wordings of training and held-out ones.

An answer is a sentence; after "Answer in one word." and the like it is the word alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.training.pocket_vl.pictures import COLOURS, SHAPES, Picture, Thing
from models.training.wordings import load

_W = load("pocket_vl")
QUESTIONS: dict[str, list[str]] = _W["QUESTIONS"]
HELD_OUT_QUESTIONS: dict[str, list[str]] = _W["HELD_OUT"]
BRIEF: list[str] = _W["BRIEF"]
CELLS = ["at the top left", "at the top", "at the top right", "on the left", "in the centre", "on the right"]
CELLS += ["at the bottom left", "at the bottom", "at the bottom right"]
RELATIONS: dict[str, Callable[[Thing, Thing], bool]] = {
    "left of": lambda a, b: a.column < b.column,
    "right of": lambda a, b: a.column > b.column,
    "above": lambda a, b: a.row < b.row,
    "below": lambda a, b: a.row > b.row,
}


@dataclass(frozen=True)
class Turn:
    """A question with the answer as a sentence and as a word (or as short as it can be)."""

    kind: str
    slots: dict[str, str]
    answer: str
    brief: str

    def wording(self, rng: np.random.Generator, held_out: bool = False) -> str:
        """The question in one of its wordings."""
        choices = (HELD_OUT_QUESTIONS if held_out else QUESTIONS)[self.kind]
        return choices[rng.integers(len(choices))].format(**self.slots)


def _pick(rng: np.random.Generator, items: list) -> object:
    return items[rng.integers(len(items))]


def plural(shape: str) -> str:
    """Two or none of them."""
    return shape + ("es" if shape.endswith("s") else "s")


def counted(count: int, what: str) -> str:
    """`what` is in the singular."""
    verb, number = ("is", "1") if count == 1 else ("are", "no" if count == 0 else str(count))
    words = what.split()
    name = what if count == 1 else " ".join([*words[:-1], plural(words[-1])])
    return f"There {verb} {number} {name}."


def article(name: str) -> str:
    """With `a` or `an`."""
    return ("an " if name[0] in "aeiou" else "a ") + name


def unique(things: tuple[Thing, ...], key: Callable[[Thing], str]) -> list[Thing]:
    """Things of which no other has the same key."""
    counts = Counter(key(thing) for thing in things)
    return [thing for thing in things if counts[key(thing)] == 1]


def colour(rng: np.random.Generator, picture: Picture) -> Turn | None:
    """Of a shape that is there once; one in ten times of one that is not there."""
    if rng.random() < 0.1:
        absent = sorted(set(SHAPES) - {thing.shape for thing in picture.things})
        if absent:
            shape = str(_pick(rng, absent))
            return Turn("colour", {"a": shape}, f"There is no {shape}.", "None.")
    found = unique(picture.things, lambda thing: thing.shape)
    if not found:
        return None
    thing = found[rng.integers(len(found))]
    return Turn("colour", {"a": thing.shape}, f"The {thing.shape} is {thing.colour}.", f"{thing.colour.capitalize()}.")


def shape(rng: np.random.Generator, picture: Picture) -> Turn | None:
    """Of a thing whose colour no other has."""
    found = unique(picture.things, lambda thing: thing.colour)
    if not found:
        return None
    thing = found[rng.integers(len(found))]
    answer, brief = f"It is {article(thing.shape)}.", f"{thing.shape.capitalize()}."
    if picture.kind == "large" and rng.random() < 0.6:
        return Turn("shape_large", {}, answer, brief)
    return Turn("shape", {"a": thing.colour}, answer, brief)


def count(rng: np.random.Generator, picture: Picture) -> Turn:
    """Of a shape, of a colour, or of all."""
    way = rng.random()
    if way < 0.2:
        return _count(picture, "shape", lambda thing: True)
    thing = picture.things[rng.integers(len(picture.things))]
    if way < 0.45:
        chosen = thing.colour if rng.random() < 0.85 else str(_pick(rng, list(COLOURS)))
        return _count(picture, f"{chosen} shape", lambda other: other.colour == chosen)
    chosen = thing.shape if rng.random() < 0.85 else str(_pick(rng, list(SHAPES)))
    return _count(picture, chosen, lambda other: other.shape == chosen)


def _count(picture: Picture, what: str, same: Callable[[Thing], bool]) -> Turn:
    number = sum(same(thing) for thing in picture.things)
    words = what.split()
    return Turn("count", {"a": " ".join([*words[:-1], plural(words[-1])])}, counted(number, what), f"{number}.")


def exists(rng: np.random.Generator, picture: Picture) -> Turn:
    """Half of them are there; half of the others share a colour or a shape with one that is."""
    thing = picture.things[rng.integers(len(picture.things))]
    if rng.random() < 0.5:
        name = thing.name
    elif rng.random() < 0.5:
        name = f"{thing.colour} {_pick(rng, list(SHAPES))}"
    else:
        name = f"{_pick(rng, list(COLOURS))} {thing.shape}"
    there = name in {other.name for other in picture.things}
    answer = f"Yes, there is {article(name)}." if there else f"No, there is no {name}."
    return Turn("exists", {"a": article(name)}, answer, "Yes." if there else "No.")


def where(rng: np.random.Generator, picture: Picture) -> Turn | None:
    """The cell of a thing that is there once."""
    found = unique(picture.things, lambda thing: thing.name)
    if not found or picture.kind != "shapes":
        return None
    thing = found[rng.integers(len(found))]
    cell = CELLS[3 * thing.row + thing.column]
    return Turn("where", {"a": thing.name}, f"The {thing.name} is {cell}.", f"{cell.capitalize()}.")


def at(rng: np.random.Generator, picture: Picture) -> Turn | None:
    """What stands in a cell."""
    if picture.kind != "shapes":
        return None
    cells = {3 * thing.row + thing.column: thing for thing in picture.things}
    cell = int(rng.integers(9)) if rng.random() < 0.25 else sorted(cells)[rng.integers(len(cells))]
    if cell not in cells:
        return Turn("at", {"a": CELLS[cell]}, f"There is nothing {CELLS[cell]}.", "Nothing.")
    name = article(cells[cell].name)
    return Turn("at", {"a": CELLS[cell]}, f"There is {name} {CELLS[cell]}.", f"{name.capitalize()}.")


def relation(rng: np.random.Generator, picture: Picture) -> Turn | None:
    """Left, right, above, below, by rows and columns; yes and no about as often."""
    found = unique(picture.things, lambda thing: thing.name)
    if len(found) < 2 or picture.kind != "shapes":
        return None
    first, second = (found[i] for i in rng.permutation(len(found))[:2])
    wanted = rng.random() < 0.5
    names = [name for name, holds in RELATIONS.items() if holds(first, second) == wanted]
    name = str(_pick(rng, names))
    slots = {"a": first.name, "b": second.name, "r": name}
    verb = "is" if wanted else "is not"
    answer = f"{'Yes' if wanted else 'No'}, the {first.name} {verb} {name} the {second.name}."
    return Turn("relation", slots, answer, "Yes." if wanted else "No.")


def background(rng: np.random.Generator, picture: Picture) -> Turn:
    """White, grey or black."""
    name = picture.background
    return Turn("background", {}, f"The background is {name}.", f"{name.capitalize()}.")


def describe(rng: np.random.Generator, picture: Picture) -> Turn:
    """All things with their places, in reading order; or the text."""
    if picture.text:
        text = f"There is the {noun(picture)} {picture.text} in {picture.ink}."
    elif picture.kind == "large":
        text = f"There is one large {picture.things[0].name}."
    else:
        parts = [f"{article(thing.name)} {CELLS[3 * thing.row + thing.column]}" for thing in picture.things]
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]
        text = f"There is {listed}."
    return Turn("describe", {}, text, text)


def noun(picture: Picture) -> str:
    """What a picture with text shows."""
    return "word" if picture.kind == "word" else "digit" if len(picture.text) == 1 else "number"


def read(rng: np.random.Generator, picture: Picture) -> Turn:
    """The digit, the number or the word."""
    return Turn(noun(picture), {}, f"The {noun(picture)} is {picture.text}.", f"{picture.text}.")


def ink(rng: np.random.Generator, picture: Picture) -> Turn:
    """The colour of a text."""
    name = noun(picture)
    return Turn("ink", {"a": name}, f"The {name} is {picture.ink}.", f"{picture.ink.capitalize()}.")


def spelling(rng: np.random.Generator, picture: Picture) -> Turn | None:
    """The first letter, or how many."""
    if picture.kind != "word":
        return None
    if rng.random() < 0.5:
        return Turn("first", {}, f"The first letter is {picture.text[0]}.", f"{picture.text[0]}.")
    return Turn("letters", {}, f"The word has {len(picture.text)} letters.", f"{len(picture.text)}.")


ABOUT_SHAPES = [colour, shape, count, count, exists, where, at, relation, relation, describe, background]
ABOUT_TEXT = [read, read, read, ink, spelling, describe, background]


def ask(rng: np.random.Generator, picture: Picture) -> Turn:
    """A question of any kind that suits the picture."""
    kinds = ABOUT_TEXT if picture.text else ABOUT_SHAPES
    while True:
        turn = kinds[rng.integers(len(kinds))](rng, picture)
        if turn is not None:
            return turn


def ask_several(rng: np.random.Generator, pictures: list[Picture]) -> Turn:
    """A question about two or three pictures with shapes: which has more, which shows, how many together, or one."""
    names = [str(_pick(rng, list(SHAPES))), pictures[0].things[0].shape, "shape"]
    what = names[rng.choice(3, p=[0.1, 0.6, 0.3])]
    numbers = [sum(what in ("shape", thing.shape) for thing in picture.things) for picture in pictures]
    way = rng.random()
    if way < 0.5 and numbers.count(max(numbers)) == 1:
        best = f"Picture {numbers.index(max(numbers)) + 1}"
        return Turn("more", {"a": plural(what)}, f"{best} has more {plural(what)}.", f"{best}.")
    if way < 0.65:
        return Turn("together", {"a": plural(what)}, f"There are {sum(numbers)} in all.", f"{sum(numbers)}.")
    chosen = int(rng.integers(len(pictures)))
    seen = [{thing.name for thing in picture.things} for picture in pictures]
    only = sorted(seen[chosen].difference(*(seen[:chosen] + seen[chosen + 1 :])))
    if only and way < 0.9:
        name = article(str(_pick(rng, only)))
        return Turn("which", {"a": name}, f"Picture {chosen + 1} shows {name}.", f"Picture {chosen + 1}.")
    single = unique(pictures[chosen].things, lambda thing: thing.shape)
    if not single:
        return Turn("together", {"a": plural(what)}, f"There are {sum(numbers)} in all.", f"{sum(numbers)}.")
    thing = single[rng.integers(len(single))]
    slot = {"a": f"{thing.shape} in picture {chosen + 1}"}
    return Turn("colour", slot, f"The {thing.shape} is {thing.colour}.", f"{thing.colour.capitalize()}.")
