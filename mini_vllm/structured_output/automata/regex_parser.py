"""Regular expressions, in the dialect of ECMA-262 that xgrammar takes, as expressions over bytes.

    a [a-z] [^a-z] . \\d \\w \\s \\D \\W \\S \\n \\x41 \\u0041      ab  a|b  (a)  (?:a)      a* a+ a? a{2} a{2,} a{2,5}

The whole text has to match, so that ^ and $ may be written at its ends and change nothing. `a*?` is `a*`: a grammar
takes every way. `\\D` and `\\W` are those of ECMA-262, so that é is a `\\W` (to Python's `re` it is a letter). What is
no regular language, or looks at text without taking it, is refused by name: backreferences, lookahead and lookbehind,
word boundaries; and flags and Unicode classes (\\p{…}). Upstream has no twin.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mini_vllm.structured_output.automata.expression import EMPTY, Expression, GrammarError, Repeat, choice, sequence
from mini_vllm.structured_output.automata.text_cursor import CONTROL_ESCAPES, TextCursor
from mini_vllm.structured_output.automata.unicode_ranges import MAX_CODE_POINT, Ranges, characters, complement

DIGITS: Ranges = [(0x30, 0x39)]
WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
SPACE: Ranges = [(9, 13), (0x20, 0x20), (0xA0, 0xA0)]
EVERY_SPACE: Ranges = [
    *SPACE, (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
]  # fmt: skip
"""White space and line ends of ECMA-262. `\\s` writes the common ones; `\\S` and `[^\\s]` leave all of them out."""
UNICODE_SPACE: Ranges = [(0x1C, 0x1F), (0x85, 0x85)]
"""White space for Python's `re` and for Unicode, and not for ECMA-262: neither `\\s` nor `\\S` writes it."""
ANY: Ranges = [(0, MAX_CODE_POINT)]
_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE}
_WIDEST = {"d": DIGITS, "w": WORD, "s": [*EVERY_SPACE, *UNICODE_SPACE]}
_CLASS_NAMES = re.compile(r"\\.", re.DOTALL)
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_REFUSED_GROUPS = {"=": "lookahead", "!": "lookahead", "<=": "lookbehind", "<!": "lookbehind"}


def parse_regex(
    pattern: str, dot: Ranges = ANY, character: Callable[[Ranges], Expression] = characters, widest: bool = False
) -> Expression:
    """A pattern as an expression.

    Args:
        dot: what `.` stands for. character: one character out of some, as it is written where the pattern applies
            (inside a JSON string, a quotation mark takes two bytes). widest: what matches is not to be written, so that
            `\\s` and `\\S` are all that they may be to anybody, and not what they are to everybody.

    Raises:
        GrammarError: not a regular expression, or one with something that is refused; says where.
    """
    return _RegexParser(pattern, dot, character, widest).parse()


class _RegexParser:
    def __init__(self, pattern: str, dot: Ranges, character: Callable[[Ranges], Expression], widest: bool) -> None:
        self.cursor = TextCursor(pattern, f"regex {pattern[:80]!r}")
        self.dot, self.character, self.widest = dot, character, widest

    def parse(self) -> Expression:
        body, _, _ = self._alternatives(True)
        if not self.cursor.is_done:
            raise self.cursor.error("unmatched ')'")
        return body

    def _alternatives(self, at_start: bool) -> tuple[Expression, bool, bool]:
        """a|b|c, and whether one of them was opened by a ^, or closed by a $. at_start: a ^ may stand here."""
        items, opened, ended = [], False, False
        while True:
            item, item_opened, item_ended = self._concatenation(at_start)
            items.append(item)
            opened |= item_opened
            ended |= item_ended
            if not self.cursor.takes("|"):
                return choice(items), opened, ended

    def _concatenation(self, at_start: bool) -> tuple[Expression, bool, bool]:
        items: list[Expression] = []
        opened = ended = False
        cursor = self.cursor
        while not cursor.is_done and cursor.peek() not in "|)":
            if cursor.takes("$"):
                ended = True
                continue
            if ended:
                raise cursor.error("'$' may stand at the end alone: nothing can follow the end of the text")
            if cursor.takes("^"):
                if not (at_start and not items):
                    raise cursor.error("'^' may stand at the start alone: nothing can precede the start of the text")
                opened = True
                continue
            item, item_opened, ended = self._atom(at_start and not items)
            opened |= item_opened
            times = self._times()
            if times is not None and ended:
                raise cursor.error("a group with '$' cannot be repeated")
            if times not in (None, (0, 0), (0, 1), (1, 1)) and item_opened:
                raise cursor.error("a group with '^' cannot be repeated")
            items.append(item if times is None else Repeat(item, *times))
        return (sequence(*items) if items else EMPTY), opened, ended

    def _atom(self, at_start: bool) -> tuple[Expression, bool, bool]:
        cursor = self.cursor
        taken = cursor.take()
        if taken == "(":
            cursor.enter()
            self._group_kind()
            body, opened, ended = self._alternatives(at_start)
            cursor.expect(")", "the group is not closed")
            cursor.leave()
            return body, opened, ended
        if taken == "[":
            return self.character(self._bracket()), False, False
        if taken == ".":
            return self.character(self.dot), False, False
        if taken == "\\":
            return self.character(self._escape()), False, False
        if taken in "*+?" or (taken == "{" and cursor.peek().isdigit()):
            cursor.at -= 1
            raise cursor.error(f"nothing to repeat before {taken!r}")
        return self.character([(ord(taken), ord(taken))]), False, False

    def _times(self) -> tuple[int, int | None] | None:
        """How often what stands before is repeated; None: it is not."""
        cursor = self.cursor
        sign = cursor.peek()
        if sign and sign in _SIGNS:
            cursor.take()
            times = _SIGNS[sign]
        elif cursor.takes("{"):
            times = cursor.bounds()
        else:
            return None
        cursor.takes("?")  # a lazy repetition: which text is preferred is the model's business
        if cursor.peek() and cursor.peek() in "*+?{":
            raise cursor.error("two repetitions in a row; put the first into a group")
        return times

    def _group_kind(self) -> None:
        cursor = self.cursor
        if not cursor.takes("?"):
            return
        for sign, name in _REFUSED_GROUPS.items():
            if cursor.takes(sign):
                raise cursor.error(f"{name} is not supported")
        if cursor.takes(":"):
            return
        if cursor.takes("P<") or cursor.takes("<"):
            end = cursor.text.find(">", cursor.at)
            if end < 0 or not cursor.text[cursor.at : end].isidentifier():
                raise cursor.error("the name of a group is not closed")
            cursor.at = end + 1
            return
        raise cursor.error(f"(?{cursor.peek()} is not supported: flags and other kinds of groups")

    def _bracket(self) -> Ranges:
        cursor = self.cursor
        negated = cursor.takes("^")
        ranges: Ranges = []
        if cursor.peek() == "]":
            raise cursor.error("an empty [] is not supported")
        start = cursor.at
        while not cursor.takes("]"):
            if cursor.is_done:
                raise cursor.error("'[' is not closed")
            low = self._bracket_item(negated)
            if cursor.peek() == "-" and cursor.peek(2)[1:] not in ("]", "") and _is_one(low):
                cursor.take()
                high = self._bracket_item(negated)
                if not _is_one(high) or high[0][0] < low[0][0]:
                    raise cursor.error("a range in [] goes from a character to a later one")
                low = [(low[0][0], high[0][0])]
            ranges += low
        classes = _CLASS_NAMES.findall(cursor.text, start, cursor.at)
        if {"\\s", "\\S"} <= set(classes):
            ranges = ANY  # whatever a space is, it is here or there
        return complement(ranges) if negated else ranges

    def _bracket_item(self, negated: bool) -> Ranges:
        taken = self.cursor.take()
        if taken == "\\":
            return self._escape(True, negated)
        return [(ord(taken), ord(taken))]

    def _escape(self, in_bracket: bool = False, negated: bool = False) -> Ranges:
        """negated: what is found will be left out: a class is taken at its widest then, and else at its narrowest."""
        cursor = self.cursor
        kind = cursor.take()
        if kind.lower() in _CLASSES and kind.isascii():
            narrow, wide = _CLASSES[kind.lower()], _WIDEST[kind.lower()]
            if kind.isupper():
                return complement(narrow if negated != self.widest else wide)
            return wide if negated != self.widest else narrow
        if kind in "pP":
            raise cursor.error("Unicode classes (\\p) are not supported")
        if not in_bracket and kind in "bB":
            raise cursor.error("word boundaries (\\b) are not supported")
        if not in_bracket and (kind in "123456789" or kind == "k"):
            raise cursor.error("backreferences are not supported")
        if kind in "AzZ" and not in_bracket:
            raise cursor.error(f"\\{kind} is not supported: write ^ or $")
        if kind in "xuU":
            code = self._code(kind)
        elif kind == "c":
            code = ord(cursor.take()) % 32
        else:
            code = CONTROL_ESCAPES.get(kind, ord(kind)) if kind not in "ae" else ord(kind)
        return [(code, code)]

    def _code(self, kind: str) -> int:
        """\\uD83D\\uDE00 is one character, written as two halves."""
        code = self.cursor.coded_character(kind)
        if 0xD800 <= code < 0xDC00 and self.cursor.takes("\\u"):
            low = self.cursor.coded_character("u")
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return code


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


__all__ = ["ANY", "DIGITS", "SPACE", "WORD", "GrammarError", "parse_regex"]
