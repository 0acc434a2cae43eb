"""JSON as text: strings, numbers, white space, and any value at all, in the form that xgrammar gives them.

Whitespace is that of RFC 8259, any amount of it between the parts of an object or an array, or, in the compact form, a
space after each comma and colon and nothing else. None stands before or after the whole. Upstream has no twin: see
`json_schema_converter.cc` of xgrammar 0.2.8, whose printed grammars these rules were compared with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mini_vllm.structured_output.automata.expression import (
    EMPTY,
    Expression,
    Reference,
    Repeat,
    byte_set,
    choice,
    literal,
    optional,
    sequence,
)
from mini_vllm.structured_output.automata.grammar import Grammar
from mini_vllm.structured_output.automata.unicode_ranges import Ranges, characters, complement, normalize

SPECIAL: Ranges = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]
"""Characters that a JSON string may not hold as they are."""
LINE_ENDS: Ranges = [(10, 10), (13, 13), (0x2028, 0x2029)]
"""What `.` leaves out in a pattern."""
PLAIN = characters(complement(SPECIAL))
"""One character of a string, not escaped."""
HEX = byte_set("0123456789abcdefABCDEF")
ESCAPE = sequence(literal("\\"), choice([byte_set('"\\/bfnrt'), sequence(literal("u"), HEX, HEX, HEX, HEX)]))
STRING = sequence(literal('"'), Repeat(choice([PLAIN, ESCAPE])), literal('"'))
DIGIT = byte_set("0123456789")
NATURAL = choice([literal("0"), sequence(byte_set("123456789"), Repeat(DIGIT))])
INTEGER = choice([literal("0"), sequence(optional(literal("-")), byte_set("123456789"), Repeat(DIGIT))])
NUMBER = sequence(
    optional(literal("-")),
    NATURAL,
    optional(sequence(literal("."), Repeat(DIGIT, 1))),
    optional(sequence(byte_set("eE"), optional(byte_set("+-")), Repeat(DIGIT, 1))),
)
BOOLEAN = choice([literal("true"), literal("false")])
NULL = literal("null")


@dataclass(frozen=True)
class Layout:
    """What stands between the parts: `edge` inside the brackets, `comma` between items, `colon` behind a key."""

    edge: Expression
    comma: Expression
    colon: Expression

    @classmethod
    def of(cls, any_whitespace: bool) -> Layout:
        """Any whitespace, or the compact form."""
        if not any_whitespace:
            return cls(EMPTY, literal(", "), literal(": "))
        space = Repeat(byte_set(" \n\r\t"))
        return cls(space, sequence(space, literal(","), space), sequence(space, literal(":"), space))

    def braces(self, opening: str, items: Expression, closing: str) -> Expression:
        """Items in brackets; `items` allows the empty text where there may be none."""
        return sequence(literal(opening), self.edge, items, literal(closing))

    def some(self, item: Expression, low: int, high: int | None) -> Expression:
        """So many items with commas between them and, if there are any, the edge behind the last."""
        if high == 0:
            return EMPTY
        more = Repeat(sequence(self.comma, item), max(low - 1, 0), None if high is None else high - 1)
        whole = sequence(item, more, self.edge)
        return whole if low else optional(whole)


def add_json_rules(grammar: Grammar, layout: Layout) -> None:
    """Rules `json_string`, `json_number`, …, and `json_any` for any value."""
    rules = grammar.rules
    rules["json_string"], rules["json_number"], rules["json_integer"] = STRING, NUMBER, INTEGER
    any_value, string = Reference("json_any"), Reference("json_string")
    member = sequence(string, layout.colon, any_value)
    rules["json_object"] = layout.braces("{", layout.some(member, 0, None), "}")
    rules["json_array"] = layout.braces("[", layout.some(any_value, 0, None), "]")
    parts = [Reference("json_number"), string, BOOLEAN, NULL, Reference("json_array"), Reference("json_object")]
    rules["json_any"] = choice(parts)


def value_text(value: object) -> str:
    """One value, in the compact form of xgrammar: no spaces at all, characters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def string_character(ranges: Ranges) -> Expression:
    """One character out of `ranges` as it is written inside a JSON string: as itself, or with its short escape.

    A control character without a short escape takes \\u00HH.
    """
    wanted = normalize(ranges)
    plain = _intersection(wanted, complement(SPECIAL))
    escaped = []
    for low, high in _intersection(wanted, SPECIAL):
        escaped += [literal(json.dumps(chr(code))[1:-1]) for code in range(low, high + 1)]
    return choice([*([characters(plain)] if plain else []), *escaped])


def _intersection(first: Ranges, second: Ranges) -> Ranges:
    """Code points in both."""
    return [(max(a, c), min(b, d)) for a, b in first for c, d in second if max(a, c) <= min(b, d)]
