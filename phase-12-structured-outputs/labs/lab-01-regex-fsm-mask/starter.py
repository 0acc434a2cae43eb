"""Lab 12-01: from a pattern to the tokens that may come next.

A pattern here is a row of atoms. An atom is one character, or a class of them in brackets (`[a-f0-9]`), and may have a
`+` behind it: once or more often. A vocabulary is a list of texts, one a token; a token that is no text (the end of a
sequence, a role mark) has the empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FSM:
    """A finite-state machine. Given.

    transitions: state -> character -> the one state after it; a character that is not there kills the text. Each state
    has an entry, perhaps an empty one. accepting: the states in which a text may end.
    """

    transitions: dict[int, dict[str, int]]
    accepting: frozenset[int]
    start: int = 0


def parse_atoms(pattern: str) -> list[tuple[frozenset[str], bool]]:
    """The atoms of a pattern: (the characters that may stand there, whether it has a `+`).

    Inside brackets every character means itself, but for a `-` between two others, which is a range with both ends.

    Raises:
        ValueError: "position P: WHAT", P counted from 0. WHAT is "'+' has nothing to repeat" at the start and after
            another `+`; "'[' is not closed"; "an empty class"; "the range 'z-a' is upside down"; and for one of
            . * ? ( ) | \\ ^ $ { } outside of brackets, and \\ or a first ^ inside, "'.' is not in this subset", with
            the character as `repr` writes it. A P inside a class is that of its `[`. Any other character means itself.
    """
    raise NotImplementedError("the atoms of a pattern: which characters may stand there, and whether it repeats")


def compile_pattern(pattern: str) -> FSM:
    """The machine that accepts exactly the texts that match the whole pattern.

    It is deterministic, as `FSM` says, whatever the pattern: `[0-9]+0` too, where a 0 may be the last or one more of
    the others. From each of its states an accepting one can be reached. How states are numbered, and whether there are
    as few as possible, is yours to decide, but for the start, which is 0.

    Raises:
        ValueError: as `parse_atoms`.
    """
    raise NotImplementedError("the machine that accepts what the whole pattern matches, deterministic")


def predicted_growth() -> float:
    """Your prediction, made before you run anything: append `[ab]` to `[ab]+a`, again and again. By what factor does
    the number of states of the machine grow each time, in the long run? 1.0 means: by a constant number of states.
    """
    raise NotImplementedError("your prediction: the factor by which the number of states grows with each `[ab]`")


def advance(fsm: FSM, state: int, text: str) -> int | None:
    """The state after `text`, read from `state` on; None where the text dies on the way. The machine stays as it is."""
    raise NotImplementedError("the state after a text, or None where it dies")


def allowed_tokens(fsm: FSM, state: int, vocab: Sequence[str]) -> set[int]:
    """Ids of the tokens that may come next: those whose whole text can be read from here, and that are text at all.

    The end of the sequence is not among them; whether it may come is another question (`FSM.accepting`).
    """
    raise NotImplementedError("ids of the tokens that can be read from here to their end")


def pack_row(allowed: Iterable[int], vocab_size: int) -> np.ndarray:
    """The same set as upstream keeps it: int32[ceil(vocab_size / 32)], token t is bit t % 32 of word t // 32.

    Raises:
        ValueError: "token 40 is outside of a vocabulary of 40"; negative ids are outside, too.
    """
    raise NotImplementedError("the row of int32 words, one bit a token")


def constrained_generate(
    fsm: FSM, vocab: Sequence[str], prefer: Sequence[int], eos_id: int, max_tokens: int
) -> tuple[str, str]:
    """What a model writes under the machine's masks: (text, why it ended).

    Args:
        prefer: the model: all ids of the vocabulary, the one that it likes best first, at every step anew.
        max_tokens: tokens that it may give at most, the end of the sequence included.

    Returns:
        The text, and "stop" where the model ended it by `eos_id`, which it may do where the machine accepts; "length"
        where it came to `max_tokens` before.

    Raises:
        ValueError: "no token of the vocabulary fits after 'TEXT'".
    """
    raise NotImplementedError("the text that the model writes under the masks, and why it ended")
