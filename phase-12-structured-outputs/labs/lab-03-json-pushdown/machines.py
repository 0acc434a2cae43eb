"""Machines with faults, for the hunt; and one without. Given material: nothing to edit here.

They do not know modes or stacks: each reads the whole text again at every question, with a parser that can say
"wrong", "not finished" or "finished". That is slow and simple, so that they are no help for your own.
"""

from __future__ import annotations

import json

ALPHABET = '0123456789{}[]",:abcde'
FAULTS = (
    "leading zeros",
    "comma before }",
    "comma before ]",
    "any bracket closes",
    "ends while open",
    "no empty array",
    "no zero",
    "at most three deep",
    "two values",
)


class Unfinished(Exception):
    """The text may go on."""


class Wrong(Exception):
    """No text begins so."""


class Faulty:
    """A machine with one of the FAULTS; with "" it has none."""

    def __init__(self, fault: str) -> None:
        self.fault, self.text = fault, ""
        self.fed = 0

    def allowed(self) -> set[str]:
        return {each for each in ALPHABET if self._verdict(self.text + each) != "wrong"}

    def feed(self, character: str) -> None:
        self.fed += 1
        if self.fed > 300:
            raise AssertionError("a machine was fed more than 300 characters")
        if len(character) != 1 or self._verdict(self.text + character) == "wrong":
            raise ValueError(f"{character!r} cannot stand here")
        self.text += character

    def accepting(self) -> bool:
        if self.fault == "ends while open" and self.text[-1:] in ("}", "]"):
            return True
        return self._verdict(self.text) == "finished"

    def _verdict(self, text: str) -> str:
        try:
            at = self._value(text, 0, 0)
            if self.fault == "two values" and at < len(text):
                at = self._value(text, at, 0) if text[0] in "[{" else at
        except Unfinished:
            return "unfinished"
        except Wrong:
            return "wrong"
        if at < len(text):
            return "wrong"
        return "finished"

    def _at(self, text: str, at: int) -> str:
        if at >= len(text):
            raise Unfinished
        return text[at]

    def _value(self, text: str, at: int, depth: int) -> int:
        first = self._at(text, at)
        if first in "{[":
            if self.fault == "at most three deep" and depth == 3:
                raise Wrong
            return self._members(text, at + 1, first, depth + 1)
        if first not in "0123456789" or (first == "0" and self.fault == "no zero"):
            raise Wrong
        end = at + 1
        while end < len(text) and text[end] in "0123456789" and (first != "0" or self.fault == "leading zeros"):
            end += 1
        return end

    def _members(self, text: str, at: int, opener: str, depth: int) -> int:
        closer = "}" if opener == "{" else "]"
        closers = "}]" if self.fault == "any bracket closes" else closer
        if self._at(text, at) in closers and not (self.fault == "no empty array" and opener == "["):
            return at + 1
        while True:
            if opener == "{":
                at = self._key(text, at)
            at = self._value(text, at, depth)
            behind = self._at(text, at)
            if behind in closers:
                return at + 1
            if behind != ",":
                raise Wrong
            at += 1
            if self.fault == f"comma before {closer}" and self._at(text, at) == closer:
                return at + 1

    def _key(self, text: str, at: int) -> int:
        if self._at(text, at) != '"':
            raise Wrong
        end = at + 1
        while self._at(text, end) in "abcde":
            end += 1
        if text[end] != '"' or end == at + 1:
            raise Wrong
        if self._at(text, end + 1) != ":":
            raise Wrong
        return end + 2


def judge(fault: str, text: str) -> str:
    """Why a text shows that this machine is wrong, "" where it does not."""
    machine = Faulty(fault)
    try:
        for character in text:
            machine.feed(character)
        takes = machine.accepting()
    except ValueError:
        takes = False
    right = Faulty("")
    belongs = right._verdict(text) == "finished"
    try:
        json.loads(text)
    except ValueError:
        return "it lets a text end that json.loads refuses" if takes else ""
    return "it refuses a text that is JSON of this lab" if belongs and not takes else ""
