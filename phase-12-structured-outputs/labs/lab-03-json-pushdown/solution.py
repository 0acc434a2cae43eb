"""Lab 12-03: a machine for JSON, which a table of states cannot be, and a hunt for machines that are wrong.

JSON here is a part of it: objects `{…}`, arrays `[…]`, and whole numbers without a sign; keys are one or more of the
letters a to e in quotes; no whitespace. It nests without end, and that is all that matters.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

DIGITS = "0123456789"
LETTERS = "abcde"
END = "<end>"
"""What a model says when it has finished; never a character of the text."""


class JsonMachine:
    """Where a text stands in the grammar, one character after the other. Starts before the first.

    How it is kept is yours to decide. What nests must not be counted only: `[{` may go on with `}`, `{"a":[` may not.
    """

    def __init__(self) -> None:
        self.mode = "value"
        self.stack: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """Objects and arrays that are open."""
        return len(self.stack)

    def allowed(self) -> set[str]:
        """The characters that may come next; nothing changes. Empty where the text is complete and cannot grow."""
        behind = {"{": {",", "}"}, "[": {",", "]"}}[self.stack[-1]] if self.stack else set()
        if self.mode == "value":
            return {*DIGITS, "{", "["}
        if self.mode == "first item":
            return {*DIGITS, "{", "[", "]"}
        if self.mode == "number":
            return {*DIGITS} | behind
        if self.mode == "behind":
            return behind
        return {
            "first key": {'"', "}"}, "key": {'"'}, "letter": {*LETTERS}, "letters": {*LETTERS, '"'}, "colon": {":"},
        }[self.mode]  # fmt: skip

    def feed(self, character: str) -> None:
        """Go on by one character.

        Raises:
            ValueError: "'C' cannot stand here, only one of X Y Z", these in order of their code; "'C' cannot stand
                here: the text is complete" where none may. Nothing has changed then.
        """
        allowed = self.allowed()
        if character not in allowed:
            only = f", only one of {' '.join(sorted(allowed))}" if allowed else ": the text is complete"
            raise ValueError(f"{character!r} cannot stand here{only}")
        if character in "{[":
            self.stack += (character,)
            self.mode = "first key" if character == "{" else "first item"
        elif character in "}]":
            self.stack = self.stack[:-1]
            self.mode = "behind"
        elif character == ",":
            self.mode = "key" if self.stack[-1] == "{" else "value"
        elif character == ":":
            self.mode = "value"
        elif character == '"':
            self.mode = "colon" if self.mode == "letters" else "letter"
        elif character in LETTERS:
            self.mode = "letters"
        elif self.mode != "number":
            self.mode = "behind" if character == "0" else "number"

    def accepting(self) -> bool:
        """Whether the text may end here."""
        return not self.stack and self.mode in ("behind", "number")

    def snapshot(self) -> Any:
        """All that there is to know of this place. What is fed later does not change it."""
        return self.mode, self.stack

    def restore(self, snapshot: Any) -> None:
        """Be again where the snapshot was taken, of this machine or of another."""
        self.mode, self.stack = snapshot


def constrained_generate(machine: Any, choose: Callable[[list[str]], str], max_chars: int) -> tuple[str, str]:
    """What a model writes when it may take legal characters alone: (text, "stop" or "length").

    Args:
        machine: with `allowed`, `feed` and `accepting`; it is where the text begins, and is fed.
        choose: the model: given what may come next in order of code, with END last where the text may end, it returns
            one of them.
        max_chars: where the text is cut: "length".
    """
    text = ""
    while len(text) < max_chars:
        legal = sorted(machine.allowed()) + [END] * machine.accepting()
        character = choose(legal)
        if character == END:
            return text, "stop"
        machine.feed(character)
        text += character
    return text, "length"


def allowed_tokens(machine: JsonMachine, vocab: Sequence[str]) -> set[int]:
    """Ids of the tokens whose whole text can be fed from here, and that are text at all. The machine stays in place."""
    here, found = machine.snapshot(), set()
    first = machine.allowed()
    for token, text in enumerate(vocab):
        if text[:1] not in first:
            continue
        try:
            for character in text:
                machine.feed(character)
            found.add(token)
        except ValueError:
            pass
        machine.restore(here)
    return found


def predicted_stops() -> int:
    """Your prediction, made before you run anything: 50 models write under the mask, up to 60 characters. Each likes
    the characters (and the end) in a fixed random order of its own and takes what it likes best of the legal ones.
    How many of the 50 texts come to their end?
    """
    return 9


def hunt(make_machine: Callable[[], Any]) -> str | None:
    """A text that shows that a machine is wrong; None where you find none.

    It is wrong where it lets a text end that `json.loads` refuses, or refuses a text of this lab's JSON that
    `json.loads` takes. `make_machine()` gives one at its start, with `allowed`, `feed` and `accepting`; you may ask
    for at most 500, and feed each at most 300 characters. How you look is yours to decide.
    """
    rng = random.Random(0)

    def choose(legal: list[str]) -> str:
        """A kind first, so that ten digits weigh no more than a bracket."""
        kind = rng.choice(sorted({_kind(each) for each in legal}))
        return rng.choice([each for each in legal if _kind(each) == kind])

    for _ in range(150):
        text, reason = constrained_generate(make_machine(), choose, 60)
        if reason == "stop" and not _is_json(text):
            return text
        text = json.dumps(_random_value(rng, 4), separators=(",", ":"))
        if not _takes(make_machine(), text):
            return text
    return None


def _kind(character: str) -> str:
    return "0" if character in DIGITS else "a" if character in LETTERS else character


def _random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.choice(["number", "object", "array"]) if depth else "number"
    if kind == "number":
        return rng.choice([0, rng.randrange(10), rng.randrange(1000)])
    values = [_random_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind == "array":
        return values
    return {"".join(rng.choices(LETTERS, k=rng.randrange(1, 4))): value for value in values}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _takes(machine: Any, text: str) -> bool:
    try:
        for character in text:
            machine.feed(character)
    except ValueError:
        return False
    return bool(machine.accepting())
