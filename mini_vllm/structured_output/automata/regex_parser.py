"""Regular expressions, in the dialect of ECMA-262 that xgrammar takes, as expressions over bytes.

    a [a-z] [^a-z] . \\d \\w \\s \\D \\W \\S \\n \\x41 \\u0041      ab  a|b  (a)  (?:a)      a* a+ a? a{2} a{2,} a{2,5}

The whole text has to match, so that ^ and $ may be written at its ends and change nothing. `a*?` is `a*`: a grammar
takes every way. What is no regular language, or looks at text without taking it, is refused by name: backreferences,
lookahead and lookbehind, word boundaries; and flags and Unicode classes (\\p{…}). Upstream has no twin.
"""

from __future__ import annotations

from collections.abc import Callable

from mini_vllm.structured_output.automata.expression import EMPTY, Expression, GrammarError, Repeat, choice, sequence
from mini_vllm.structured_output.automata.text_cursor import CONTROL_ESCAPES, TextCursor
from mini_vllm.structured_output.automata.unicode_ranges import MAX_CODE_POINT, Ranges, characters, complement

DIGITS: Ranges = [(0x30, 0x39)]
WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
SPACE: Ranges = [(9, 13), (0x20, 0x20), (0xA0, 0xA0)]
ANY: Ranges = [(0, MAX_CODE_POINT)]
_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE}
_REFUSED_GROUPS = {"=": "lookahead", "!": "lookahead", "<=": "lookbehind", "<!": "lookbehind"}


def parse_regex(pattern: str, dot: Ranges = ANY, character: Callable[[Ranges], Expression] = characters) -> Expression:
    """A pattern as an expression.

    Args:
        dot: what `.` stands for. character: one character out of some, as it is written where the pattern applies
            (inside a JSON string, a quotation mark takes two bytes).

    Raises:
        GrammarError: not a regular expression, or one with something that is refused; says where.
    """
    return _RegexParser(pattern, dot, character).parse()


class _RegexParser:
    def __init__(self, pattern: str, dot: Ranges, character: Callable[[Ranges], Expression]) -> None:
        self.cursor = TextCursor(pattern, f"regex {pattern[:80]!r}")
        self.dot, self.character = dot, character

    def parse(self) -> Expression:
        body, _ = self._alternatives(True)
        if not self.cursor.is_done:
            raise self.cursor.error("unmatched ')'")
        return body

    def _alternatives(self, at_start: bool) -> tuple[Expression, bool]:
        """a|b|c, and whether one of them was closed by a $. at_start: a ^ may stand here."""
        items, ended = [], False
        while True:
            item, item_ended = self._concatenation(at_start)
            items.append(item)
            ended |= item_ended
            if not self.cursor.takes("|"):
                return choice(items), ended

    def _concatenation(self, at_start: bool) -> tuple[Expression, bool]:
        items: list[Expression] = []
        ended = False
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
                continue
            item, ended = self._atom(at_start and not items)
            item, repeated = self._repeated(item)
            if repeated and ended:
                raise cursor.error("a group with '$' cannot be repeated")
            items.append(item)
        return (sequence(*items) if items else EMPTY), ended

    def _atom(self, at_start: bool) -> tuple[Expression, bool]:
        cursor = self.cursor
        taken = cursor.take()
        if taken == "(":
            cursor.enter()
            self._group_kind()
            body, ended = self._alternatives(at_start)
            cursor.expect(")", "the group is not closed")
            cursor.leave()
            return body, ended
        if taken == "[":
            return self.character(self._bracket()), False
        if taken == ".":
            return self.character(self.dot), False
        if taken == "\\":
            return self.character(self._escape()), False
        if taken in "*+?" or (taken == "{" and cursor.peek().isdigit()):
            cursor.at -= 1
            raise cursor.error(f"nothing to repeat before {taken!r}")
        return self.character([(ord(taken), ord(taken))]), False

    def _repeated(self, item: Expression) -> tuple[Expression, bool]:
        cursor = self.cursor
        if cursor.takes("*"):
            item = Repeat(item)
        elif cursor.takes("+"):
            item = Repeat(item, 1)
        elif cursor.takes("?"):
            item = Repeat(item, 0, 1)
        elif cursor.takes("{"):
            item = Repeat(item, *cursor.bounds())
        else:
            return item, False
        cursor.takes("?")  # a lazy repetition: which text is preferred is the model's business
        if cursor.peek() and cursor.peek() in "*+?{":
            raise cursor.error("two repetitions in a row; put the first into a group")
        return item, True

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
        while not cursor.takes("]"):
            if cursor.is_done:
                raise cursor.error("'[' is not closed")
            low = self._bracket_item()
            if cursor.peek() == "-" and cursor.peek(2)[1:] not in ("]", "") and _is_one(low):
                cursor.take()
                high = self._bracket_item()
                if not _is_one(high) or high[0][0] < low[0][0]:
                    raise cursor.error("a range in [] goes from a character to a later one")
                low = [(low[0][0], high[0][0])]
            ranges += low
        return complement(ranges) if negated else ranges

    def _bracket_item(self) -> Ranges:
        taken = self.cursor.take()
        if taken == "\\":
            return self._escape(in_bracket=True)
        return [(ord(taken), ord(taken))]

    def _escape(self, in_bracket: bool = False) -> Ranges:
        cursor = self.cursor
        kind = cursor.take()
        if kind.lower() in _CLASSES and kind.isascii():
            found = _CLASSES[kind.lower()]
            return complement(found) if kind.isupper() else found
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
