"""EBNF in the dialect of xgrammar (llama.cpp's GBNF, and a little more) as rules.

    root ::= greeting " " [A-Z] [a-z]* ("!" | "?"){1,3}   # a comment
    greeting ::= "hello" | "good\\nbye"

A rule goes on until the next `name ::=`. Texts stand in double quotes, with the escapes of C; `[a-z]` and `[^a-z]` are
one character; `* + ? {2} {2,} {2,5}` repeat; `(= …)`, a hint to xgrammar about what follows, changes nothing there and
is passed over. Macros (`TagDispatch(…)`) are refused by name. A rule may begin with itself; by way of others, not.
Upstream has no twin.
"""

from __future__ import annotations

import re

from mini_vllm.structured_output.automata.expression import (
    EMPTY,
    Expression,
    Reference,
    Repeat,
    choice,
    literal,
    sequence,
)
from mini_vllm.structured_output.automata.grammar import Grammar
from mini_vllm.structured_output.automata.text_cursor import CONTROL_ESCAPES, TextCursor
from mini_vllm.structured_output.automata.unicode_ranges import Ranges, characters, complement

_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z_.\-][A-Za-z0-9_.\-]*")
_ASSIGN = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*::=")
_RULE = re.compile(rf"({_NAME.pattern}){_ASSIGN.pattern}")
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"')
_OPERATORS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_ebnf(text: str, root: str = "root") -> Grammar:
    """The rules of a grammar.

    Raises:
        GrammarError: says which line, and what is wrong there.
    """
    return _EbnfParser(text, root).parse()


class _EbnfParser:
    def __init__(self, text: str, root: str) -> None:
        self.cursor = TextCursor(text, "grammar")
        self.grammar = Grammar(root=root)
        self.names = set(_RULE.findall(_QUOTED.sub('""', text)))

    def parse(self) -> Grammar:
        cursor = self.cursor
        self._skip_space()
        if cursor.is_done:
            raise cursor.error("there is no rule")
        while not cursor.is_done:
            name = self._name("a rule starts with its name")
            if name in self.grammar.rules:
                raise cursor.error(f"rule {name!r} is defined twice")
            self._skip_space()
            cursor.expect("::=", f"'::=' must follow the name of rule {name!r}")
            self.grammar.rules[name] = self._alternatives()
            self._skip_space()
            if not cursor.is_done and not self._at_rule():
                raise cursor.error(f"{cursor.peek()!r} cannot stand here")
        return self.grammar

    def _skip_space(self) -> None:
        match = _SPACE.match(self.cursor.text, self.cursor.at)
        assert match is not None
        self.cursor.at = match.end()

    def _name(self, message: str) -> str:
        match = _NAME.match(self.cursor.text, self.cursor.at)
        if match is None:
            raise self.cursor.error(message)
        self.cursor.at = match.end()
        return match[0]

    def _at_rule(self) -> bool:
        """True where the next rule begins: a name and ::=."""
        match = _NAME.match(self.cursor.text, self.cursor.at)
        return match is not None and _ASSIGN.match(self.cursor.text, match.end()) is not None

    def _alternatives(self) -> Expression:
        items = [self._concatenation()]
        while self.cursor.takes("|"):
            items.append(self._concatenation())
        return choice(items)

    def _concatenation(self) -> Expression:
        items: list[Expression] = []
        while True:
            self._skip_space()
            next_one = self.cursor.peek()
            if next_one in ("", "|", ")") or self._at_rule():
                if not items:
                    raise self.cursor.error('an alternative may not be empty; write ""')
                return sequence(*items)
            item = self._element()
            if item is not None:
                items.append(self._repeated(item))

    def _element(self) -> Expression | None:
        cursor = self.cursor
        if cursor.takes('"'):
            return self._text()
        if cursor.takes("["):
            return characters(self._bracket())
        if cursor.takes("("):
            if cursor.takes("="):
                self._group()
                return None
            return self._group()
        name = self._name(f"{cursor.peek()!r} cannot stand here")
        if cursor.peek() == "(" and name not in self.names:  # behind the name of a rule, a group begins
            raise cursor.error(f"the macro {name}(…) is not supported, and no rule has this name")
        return Reference(name)

    def _group(self) -> Expression:
        self.cursor.enter()
        body = self._alternatives()
        self._skip_space()
        self.cursor.expect(")", "the group is not closed")
        self.cursor.leave()
        return body

    def _repeated(self, item: Expression) -> Expression:
        cursor = self.cursor
        while True:
            sign = cursor.peek()
            if sign in _OPERATORS and sign:
                cursor.take()
                item = Repeat(item, *_OPERATORS[sign])
            elif cursor.takes("{"):
                item = Repeat(item, *cursor.bounds())
            else:
                return item

    def _text(self) -> Expression:
        data = bytearray()
        while not self.cursor.takes('"'):
            if self.cursor.peek() in ("", "\n", "\r"):
                raise self.cursor.error("the text in quotation marks is not closed")
            data += chr(self._character()).encode("utf-8", "surrogatepass")
        return literal(bytes(data)) if data else EMPTY

    def _character(self) -> int:
        """A code point, escaped or as it is."""
        cursor = self.cursor
        taken = cursor.take()
        if taken != "\\":
            return ord(taken)
        kind = cursor.take()
        if kind in "xuU":
            return cursor.coded_character(kind)
        if kind in CONTROL_ESCAPES:
            return CONTROL_ESCAPES[kind]
        if kind in "\"'\\?-]^[/":
            return ord(kind)
        raise cursor.error(f"\\{kind} is no escape")

    def _bracket(self) -> Ranges:
        cursor = self.cursor
        negated = cursor.takes("^")
        ranges: Ranges = []
        while not cursor.takes("]"):
            if cursor.peek() in ("", "\n", "\r"):
                raise cursor.error("'[' is not closed")
            low = high = self._character()
            if cursor.peek() == "-" and cursor.peek(2)[1:] not in ("]", ""):
                cursor.take()
                high = self._character()
            if high < low:
                raise cursor.error("a range in [] goes from a character to a later one")
            ranges.append((low, high))
        return complement(ranges) if negated else ranges
