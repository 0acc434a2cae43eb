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
    atoms: list[tuple[frozenset[str], bool]] = []
    at = 0
    while at < len(pattern):
        place, character = at, pattern[at]
        at += 1
        if character == "+":
            raise ValueError(f"position {place}: '+' has nothing to repeat")
        if character in ".*?()|\\^${}":
            raise ValueError(f"position {place}: {character!r} is not in this subset")
        allowed = frozenset(character)
        if character == "[":
            end = pattern.find("]", at)
            if end < 0:
                raise ValueError(f"position {place}: '[' is not closed")
            allowed = _members(pattern[at:end], place)
            at = end + 1
        repeats = pattern[at : at + 1] == "+"
        at += repeats
        atoms.append((allowed, repeats))
    return atoms


def _members(body: str, place: int) -> frozenset[str]:
    if not body:
        raise ValueError(f"position {place}: an empty class")
    if "\\" in body or body[0] == "^":
        wrong = "\\" if "\\" in body else "^"
        raise ValueError(f"position {place}: {wrong!r} is not in this subset")
    found: set[str] = set()
    at = 0
    while at < len(body):
        if body[at + 1 : at + 2] == "-" and at + 2 < len(body):
            low, high = body[at], body[at + 2]
            if low > high:
                raise ValueError(f"position {place}: the range {low + '-' + high!r} is upside down")
            found.update(map(chr, range(ord(low), ord(high) + 1)))
            at += 3
        else:
            found.add(body[at])
            at += 1
    return frozenset(found)


def compile_pattern(pattern: str) -> FSM:
    """The machine that accepts exactly the texts that match the whole pattern.

    It is deterministic, as `FSM` says, whatever the pattern: `[0-9]+0` too, where a 0 may be the last or one more of
    the others. From each of its states an accepting one can be reached. How states are numbered, and whether there are
    as few as possible, is yours to decide, but for the start, which is 0.

    Raises:
        ValueError: as `parse_atoms`.
    """
    atoms = parse_atoms(pattern)
    number: dict[frozenset[int], int] = {frozenset({0}): 0}
    transitions: dict[int, dict[str, int]] = {}
    todo = list(number)
    while todo:
        places = todo.pop()
        reached: dict[str, set[int]] = {}
        for place in places:
            if place < len(atoms):
                for character in atoms[place][0]:
                    reached.setdefault(character, set()).add(place + 1)
            if place and atoms[place - 1][1]:
                for character in atoms[place - 1][0]:
                    reached.setdefault(character, set()).add(place)
        row = transitions[number[places]] = {}
        for character, targets in reached.items():
            key = frozenset(targets)
            if key not in number:
                number[key] = len(number)
                todo.append(key)
            row[character] = number[key]
    return FSM(transitions, frozenset(n for places, n in number.items() if len(atoms) in places))


def predicted_growth() -> float:
    """Your prediction, made before you run anything: append `[ab]` to `[ab]+a`, again and again. By what factor does
    the number of states of the machine grow each time, in the long run? 1.0 means: by a constant number of states.
    """
    return 2.0


def advance(fsm: FSM, state: int, text: str) -> int | None:
    """The state after `text`, read from `state` on; None where the text dies on the way. The machine stays as it is."""
    for character in text:
        target = fsm.transitions[state].get(character)
        if target is None:
            return None
        state = target
    return state


def allowed_tokens(fsm: FSM, state: int, vocab: Sequence[str]) -> set[int]:
    """Ids of the tokens that may come next: those whose whole text can be read from here, and that are text at all.

    The end of the sequence is not among them; whether it may come is another question (`FSM.accepting`).
    """
    return {token for token, text in enumerate(vocab) if text and advance(fsm, state, text) is not None}


def pack_row(allowed: Iterable[int], vocab_size: int) -> np.ndarray:
    """The same set as upstream keeps it: int32[ceil(vocab_size / 32)], token t is bit t % 32 of word t // 32.

    Raises:
        ValueError: "token 40 is outside of a vocabulary of 40"; negative ids are outside, too.
    """
    row = np.zeros(-(-vocab_size // 32), np.uint32)
    for token in allowed:
        if not 0 <= token < vocab_size:
            raise ValueError(f"token {token} is outside of a vocabulary of {vocab_size}")
        row[token // 32] |= np.uint32(1 << token % 32)
    return row.view(np.int32)


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
    state, text = fsm.start, ""
    for _ in range(max_tokens):
        allowed = allowed_tokens(fsm, state, vocab)
        if state in fsm.accepting:
            allowed.add(eos_id)
        token = next((each for each in prefer if each in allowed), None)
        if token is None:
            raise ValueError(f"no token of the vocabulary fits after {text!r}")
        if token == eos_id:
            return text, "stop"
        target = advance(fsm, state, vocab[token])
        assert target is not None
        state, text = target, text + vocab[token]
    return text, "length"
