"""Objects and arrays of a JSON schema. Upstream has no twin.

Properties stand in the order of the schema, each at most once. After the first one, what may follow is a plain
sequence: `, "b": …` if it is required, the same in brackets if not. Before the first, it has to be chosen which comes
first; that is where the rules `…_rest` are shared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mini_vllm.structured_output.automata.expression import (
    EMPTY,
    Expression,
    GrammarError,
    Reference,
    Repeat,
    choice,
    literal,
    optional,
    sequence,
)
from mini_vllm.structured_output.automata.json_text import SPECIAL, Layout
from mini_vllm.structured_output.automata.unicode_ranges import characters, complement, normalize

if TYPE_CHECKING:
    from mini_vllm.structured_output.automata.json_schema import SchemaCompiler

MOST_COUNTED = 64
"""Properties that are counted: there is a rule for each of them and each number of those before it."""


def object_body(compiler: SchemaCompiler, schema: Mapping[str, Any], where: str) -> Expression:
    """Objects that obey a schema.

    Raises:
        GrammarError: `minProperties` beyond the properties that can be counted: keys that nobody named may repeat.
    """
    properties, required, extra = _properties(schema, where)
    low, high = _count(schema, "minProperties", where) or 0, _count(schema, "maxProperties", where)
    about_names = "propertyNames" in schema or "patternProperties" in schema
    if extra is not False and compiler.unique.inside:
        raise GrammarError(f"{where}: objects with free keys cannot be items that have to differ (uniqueItems)")
    if not properties and extra is True and not low and high is None and not about_names:
        return Reference("json_object")
    if compiler.unique.inside:
        properties = {name: properties[name] for name in compiler.unique.ordered(properties)}
    members = [
        (name in required, sequence(_key(name), compiler.layout.colon, named(compiler, each, f"{where}/{name}")))
        for name, each in properties.items()
    ]
    other = None
    if extra is not False:
        key, extra = _other_keys(compiler, schema, list(properties), extra, where)
        value = named(compiler, extra, f"{where}/additionalProperties")
        other = sequence(key, compiler.layout.colon, value)
    countable = len(properties) + (other is not None)
    if other is not None and low > max(len(required), 1):
        raise GrammarError(f"{where}: minProperties of {low} beside additional properties is not supported")
    if low > countable:
        return choice([])
    if (low or high is not None) and len(members) > MOST_COUNTED:
        raise GrammarError(f"{where}: minProperties and maxProperties count {MOST_COUNTED} properties at most")
    return _Members(compiler, members, other, low, high).body()


def _other_keys(
    compiler: SchemaCompiler, schema: Mapping[str, Any], names: list[str], extra: object, where: str
) -> tuple[Expression, object]:
    """What a key that nobody named looks like, and the schema of its value.

    Raises:
        GrammarError: keys of two kinds at once.
    """
    form, patterns = schema.get("propertyNames", True), schema.get("patternProperties", {})
    if form is True and not patterns:
        return _key_other_than(compiler, names), extra
    if names or (patterns and form is not True):
        raise GrammarError(f"{where}: properties, patternProperties and propertyNames are not supported together")
    if not patterns:
        if not isinstance(form, Mapping):
            raise GrammarError(f"{where}: propertyNames must be a schema of strings")
        return compiler.value({**form, "type": "string"}, f"{where}/propertyNames"), extra
    if not isinstance(patterns, Mapping) or len(patterns) != 1:
        raise GrammarError(f"{where}: patternProperties with more than one pattern is not supported")
    if schema.get("additionalProperties", False) is not False:
        raise GrammarError(f"{where}: patternProperties beside additionalProperties is not supported")
    [(pattern, value)] = patterns.items()
    return compiler.value({"type": "string", "pattern": pattern}, f"{where}/patternProperties"), value


def _properties(schema: Mapping[str, Any], where: str) -> tuple[dict[str, Any], set[str], object]:
    """Properties by name, those that were required without being described at the end; which are required; and the
    schema of others, False where there may be none."""
    properties, names = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping):
        raise GrammarError(f"{where}: properties must be an object")
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise GrammarError(f"{where}: required must be a list of names")
    given = schema.get("additionalProperties")
    extra = given if given is not None else not ("properties" in schema or names)
    extra = extra or bool(schema.get("patternProperties"))
    undescribed = {name: True if given is None else given for name in names if name not in properties}
    return {**properties, **undescribed}, set(names), extra


class _Members:
    """The inside of an object: `members` in order, (required, key and value), then any number of `other`."""

    def __init__(
        self, compiler: SchemaCompiler, members: list[tuple[bool, Expression]], other: Expression | None, low: int,
        high: int | None,
    ) -> None:  # fmt: skip
        self.compiler, self.layout = compiler, compiler.layout
        self.members, self.other, self.low, self.high = members, other, low, high
        self.counts = low > 0 or high is not None
        self._rest_of: dict[tuple[int, int], Reference] = {}

    def body(self) -> Expression:
        """With the braces."""
        return self.layout.braces("{", self._first(), "}")

    def _first(self) -> Expression:
        """Which one comes first; none, where none is required."""
        ways: list[Expression] = []
        may_be_empty = self.low == 0
        if self.high != 0:
            for at, (required, member) in enumerate(self.members):
                ways.append(sequence(member, self._rest(at + 1, 1)))
                if required:
                    may_be_empty = False
                    break
            else:
                if self.other is not None:
                    ways.append(sequence(self.other, self._rest(len(self.members), 1)))
        elif any(required for required, _ in self.members):
            return choice([])
        return choice([*ways, EMPTY] if may_be_empty else ways)

    def _rest(self, at: int, count: int) -> Expression:
        """What may follow once `count` members stand there, of those from `at` on."""
        count = count if self.counts else 1
        if self.high is not None and count > self.high:
            return choice([])
        key = at, count
        if key not in self._rest_of:
            self._rest_of[key] = name = self.compiler.grammar.add("rest", EMPTY)
            self.compiler.grammar.rules[name.name] = self._rest_body(at, count)
        return self._rest_of[key]

    def _rest_body(self, at: int, count: int) -> Expression:
        comma = self.layout.comma
        if at < len(self.members):
            required, member = self.members[at]
            taken = sequence(comma, member, self._rest(at + 1, count + 1))
            return taken if required else choice([taken, self._rest(at + 1, count)])
        enough = count >= self.low
        if self.other is None:
            return self.layout.edge if enough else choice([])
        room = None if self.high is None else self.high - count
        return sequence(Repeat(sequence(comma, self.other), 0 if enough else 1, room), self.layout.edge)


def array_body(compiler: SchemaCompiler, schema: Mapping[str, Any], where: str) -> Expression:
    """Arrays that obey `prefixItems`, `items`, `minItems`, `maxItems`. After `prefixItems` come others only if `items`
    says so, or `minItems` needs them."""
    prefix, items = schema.get("prefixItems", []), schema.get("items")
    if not isinstance(prefix, list):
        raise GrammarError(f"{where}: prefixItems must be a list of schemas")
    if isinstance(items, list):
        raise GrammarError(f"{where}: items as a list is not supported; write prefixItems")
    low, high = _count(schema, "minItems", where) or 0, _count(schema, "maxItems", where)
    if high is not None and low > high:
        return choice([])
    if high is not None:
        prefix = prefix[:high]
    if items is None:
        items = not prefix or low > len(prefix)
    if schema.get("uniqueItems"):
        return compiler.unique.array(prefix, items, low, high, where)
    heads = [named(compiler, each, f"{where}/prefixItems/{n}") for n, each in enumerate(prefix)]
    item = None if items is False else named(compiler, items, f"{where}/items")
    return compiler.grammar.shared("array", array_text(compiler.layout, heads, item, low, high))


def array_text(
    layout: Layout, heads: Sequence[Expression], item: Expression | None, low: int, high: int | None
) -> Expression:
    """`heads` in their order, then any number of `item` (None: none); between `low` and `high` together."""
    if not heads:
        if item is None:
            return layout.braces("[", EMPTY, "]") if not low else choice([])
        return layout.braces("[", layout.some(item, low, high), "]")
    more = max(low - len(heads), 0)
    tail: Expression = layout.edge
    if item is not None and high != len(heads):
        room = None if high is None else high - len(heads)
        tail = sequence(Repeat(sequence(layout.comma, item), more, room), tail)
    elif more:
        return choice([])
    for number in range(len(heads) - 1, 0, -1):
        longer = sequence(layout.comma, heads[number], tail)
        tail = longer if number < low else choice([longer, layout.edge])
    whole = sequence(heads[0], tail)
    return layout.braces("[", whole if low else optional(whole), "]")


def named(compiler: SchemaCompiler, schema: object, where: str) -> Expression:
    """What a schema allows: a rule for what has parts of its own; the rest as it is."""
    if isinstance(schema, Mapping) and schema and "$ref" not in schema:
        return compiler.named(where.rpartition("/")[2] or "part", schema, where)
    return compiler.value(schema, where)


def _count(schema: Mapping[str, Any], key: str, where: str) -> int | None:
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise GrammarError(f"{where}: {key} must be a whole number of at least 0, got {value!r}")
    return int(value)


def _key(name: str) -> Expression:
    return literal(json.dumps(name, ensure_ascii=False))


def _key_other_than(compiler: SchemaCompiler, names: list[str]) -> Expression:
    """A string that is none of these names.

    Names apart, a character can be written in one way only: without \\u and \\/, by which a key could have the name of
    a property all the same (xgrammar leaves them in).
    """
    if not names:
        return Reference("json_string")
    taken = [json.dumps(name, ensure_ascii=False)[1:-1] for name in names]
    return compiler.grammar.shared("other_key", sequence(literal('"'), _text_other_than(taken)))


_ESCAPES = ['\\"', "\\\\", "\\b", "\\f", "\\n", "\\r", "\\t"]
UNIT = choice([characters(complement(SPECIAL)), *map(literal, _ESCAPES)])


def _text_other_than(taken: list[str]) -> Expression:
    """The rest of a key and its quotation mark, where none of `taken` may be that rest."""
    if not taken:
        return sequence(Repeat(UNIT), literal('"'))
    ways: list[Expression] = [] if "" in taken else [literal('"')]
    by_head: dict[str, list[str]] = {}
    for rest in filter(None, taken):
        size = (6 if rest[1] == "u" else 2) if rest[0] == "\\" else 1
        by_head.setdefault(rest[:size], []).append(rest[size:])
    plain = normalize([*SPECIAL, *((ord(head), ord(head)) for head in by_head if len(head) == 1)])
    ways.append(sequence(characters(complement(plain)), _text_other_than([])))
    ways += [sequence(literal(each), _text_other_than([])) for each in _ESCAPES if each not in by_head]
    ways += [sequence(literal(head), _text_other_than(rests)) for head, rests in by_head.items() if len(head) < 6]
    return choice(ways)
