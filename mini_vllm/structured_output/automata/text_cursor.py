"""A text that is read from left to right, with what the readers of regexes and EBNF have in common: escapes, counts.

Upstream has no twin.
"""

from __future__ import annotations

from mini_vllm.structured_output.automata.expression import GrammarError

MAX_NESTING = 200
MAX_COUNT = 100_000
"""The largest number in a repetition such as x{3,5}."""
CONTROL_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0, "a": 7, "b": 8, "e": 27}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}


class TextCursor:
    """A place in a text. what: what the text is, for messages."""

    def __init__(self, text: str, what: str) -> None:
        self.text, self.what, self.at, self.depth = text, what, 0, 0

    def error(self, message: str) -> GrammarError:
        """The error to raise, with the place."""
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        return GrammarError(f"{self.what}, line {line}, column {column}: {message}")

    @property
    def is_done(self) -> bool:
        """True at the end."""
        return self.at >= len(self.text)

    def peek(self, length: int = 1) -> str:
        """The next characters; fewer at the end."""
        return self.text[self.at : self.at + length]

    def take(self, length: int = 1) -> str:
        """The next characters, and go past them. Raises GrammarError at the end."""
        taken = self.peek(length)
        if len(taken) < length:
            raise self.error("the text ends too early")
        self.at += length
        return taken

    def takes(self, text: str) -> bool:
        """Go past `text` if it is next."""
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def expect(self, text: str, message: str) -> None:
        """Go past `text`, or raise GrammarError."""
        if not self.takes(text):
            raise self.error(message)

    def enter(self) -> None:
        """One group deeper. Raises GrammarError where it is too deep."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"more than {MAX_NESTING} groups inside each other")

    def leave(self) -> None:
        """Out of a group."""
        self.depth -= 1

    def number(self) -> int:
        """Decimal digits, at least one."""
        start = self.at
        while self.peek().isascii() and self.peek().isdigit():
            self.at += 1
        if start == self.at:
            raise self.error("a number must stand here")
        if self.at - start > 9 or int(self.text[start : self.at]) > MAX_COUNT:
            raise self.error(f"a count must be at most {MAX_COUNT}")
        return int(self.text[start : self.at])

    def bounds(self) -> tuple[int, int | None]:
        """What stands in the braces of {3}, {3,} or {3,5}; the opening one has been read."""
        low = 0 if self.peek() == "," else self.number()
        if self.takes("}"):
            return low, low
        self.expect(",", "a repetition is written {3}, {3,} or {3,5}")
        high = None if self.peek() == "}" else self.number()
        self.expect("}", "a repetition is written {3}, {3,} or {3,5}")
        if high is not None and high < low:
            raise self.error(f"a repetition of at least {low} and at most {high} times cannot be")
        return low, high

    def coded_character(self, kind: str) -> int:
        """The code point of \\xHH, \\uHHHH, \\u{H…} or \\UHHHHHHHH; the letter has been read."""
        if kind == "u" and self.takes("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : end] if end >= 0 else ""
            self.at += len(digits) + 1
        else:
            digits = self.take(_HEX_LENGTHS[kind])
        try:
            code = int(digits, 16)
        except ValueError:
            raise self.error(f"\\{kind} needs hexadecimal digits, got {digits!r}") from None
        if code > 0x10FFFF:
            raise self.error(f"there is no character {digits!r}")
        return code
