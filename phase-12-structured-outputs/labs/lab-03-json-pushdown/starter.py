"""Lab 12-03: a machine for JSON, which a table of states cannot be, and a hunt for machines that are wrong.

JSON here is a part of it: objects `{…}`, arrays `[…]`, and whole numbers without a sign; keys are one or more of the
letters a to e in quotes; no whitespace. It nests without end, and that is all that matters.
"""

from __future__ import annotations

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
        raise NotImplementedError("a machine before the first character")

    @property
    def depth(self) -> int:
        """Objects and arrays that are open."""
        raise NotImplementedError("how many objects and arrays are open")

    def allowed(self) -> set[str]:
        """The characters that may come next; nothing changes. Empty where the text is complete and cannot grow."""
        raise NotImplementedError("the characters that may come next")

    def feed(self, character: str) -> None:
        """Go on by one character.

        Raises:
            ValueError: "'C' cannot stand here, only one of X Y Z", these in order of their code; "'C' cannot stand
                here: the text is complete" where none may. Nothing has changed then.
        """
        raise NotImplementedError("the machine one character further, or a ValueError and nothing changed")

    def accepting(self) -> bool:
        """Whether the text may end here."""
        raise NotImplementedError("whether the text may end here")

    def snapshot(self) -> Any:
        """All that there is to know of this place. What is fed later does not change it."""
        raise NotImplementedError("all that there is to know of this place")

    def restore(self, snapshot: Any) -> None:
        """Be again where the snapshot was taken, of this machine or of another."""
        raise NotImplementedError("the machine where the snapshot was taken")


def constrained_generate(machine: Any, choose: Callable[[list[str]], str], max_chars: int) -> tuple[str, str]:
    """What a model writes when it may take legal characters alone: (text, "stop" or "length").

    Args:
        machine: with `allowed`, `feed` and `accepting`; it is where the text begins, and is fed.
        choose: the model: given what may come next in order of code, with END last where the text may end, it returns
            one of them.
        max_chars: where the text is cut: "length".
    """
    raise NotImplementedError("what the model writes under the machine, and why it ended")


def allowed_tokens(machine: JsonMachine, vocab: Sequence[str]) -> set[int]:
    """Ids of the tokens whose whole text can be fed from here, and that are text at all. The machine stays in place."""
    raise NotImplementedError("ids of the tokens that can be fed from here to their end")


def predicted_stops() -> int:
    """Your prediction, made before you run anything: 50 models write under the mask, up to 60 characters. Each likes
    the characters (and the end) in a fixed random order of its own and takes what it likes best of the legal ones.
    How many of the 50 texts come to their end?
    """
    raise NotImplementedError("your prediction: how many of 50 texts come to their end")


def hunt(make_machine: Callable[[], Any]) -> str | None:
    """A text that shows that a machine is wrong; None where you find none.

    It is wrong where it lets a text end that `json.loads` refuses, or refuses a text of this lab's JSON that
    `json.loads` takes. `make_machine()` gives one at its start, with `allowed`, `feed` and `accepting`; you may ask
    for at most 500, and feed each at most 300 characters. How you look is yours to decide.
    """
    raise NotImplementedError("a text that shows a fault of the machine, or None")
