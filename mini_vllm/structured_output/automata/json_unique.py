"""`uniqueItems` of a JSON schema: what items look like that are compared by their texts.

Two items are equal as values: 1 and 1.0, "a" and "\\u0061", {"x": 1, "y": 2} and {"y": 2, "x": 1}. So the items of
such an array are written in one form only, in which equal values have equal texts:

    numbers    an integer, or up to nine digits, a point and up to six more, the last of them not 0
    strings    every character as itself, or with its short escape
    objects    named properties alone, in one order for all objects of the schema, without white space

What has no such form is refused by name: keys that are free, sets in sets. An array has never more items than there are
different ones, so that each can be finished; fewer than `minItems`, and the schema is refused. What remembers the items
is `unique_items.py`. Upstream has no twin.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

from mini_vllm.structured_output.automata.expression import (
    EMPTY,
    Expression,
    GrammarError,
    Reference,
    Repeat,
    byte_set,
    choice,
    literal,
    optional,
    references,
    sequence,
)
from mini_vllm.structured_output.automata.grammar import Grammar, NoTextError, trim
from mini_vllm.structured_output.automata.json_containers import UNIT, array_text, named
from mini_vllm.structured_output.automata.json_text import BOOLEAN, DIGIT, INTEGER, NULL, Layout
from mini_vllm.structured_output.automata.pushdown import Pushdown
from mini_vllm.structured_output.automata.rule_automaton import State, build
from mini_vllm.structured_output.automata.unique_items import MANY, MOST_ITEMS, num_texts

if TYPE_CHECKING:
    from mini_vllm.structured_output.automata.json_schema import SchemaCompiler

MAX_COUNTING = 500_000
"""Looks at a stack while the items of a schema are counted."""
_NONZERO = byte_set("123456789")
_WHOLE = choice([literal("0"), sequence(_NONZERO, Repeat(DIGIT, 0, 8))])
DECIMAL = choice([INTEGER, sequence(optional(literal("-")), _WHOLE, literal("."), Repeat(DIGIT, 0, 5), _NONZERO)])
"""A number in one form; those with a point have fifteen digits at most, which a float tells apart."""


class UniqueArrays:
    """The arrays of one schema whose items all differ. inside: whether such an item is being read."""

    def __init__(self, compiler: SchemaCompiler) -> None:
        self.compiler, self.grammar, self.inside = compiler, compiler.grammar, False
        self._places: dict[str, int] = {}
        self._items: dict[Expression, Reference] = {}
        self._arrays: list[tuple[str, list[Reference], Reference | None, int, int | None, str]] = []

    def array(self, heads: list[object], items: object, low: int, high: int | None, where: str) -> Reference:
        """`heads`, then `items` (False: none), of which no two are equal; between `low` and `high` together.

        Raises:
            GrammarError: inside of another one, or items without a form in which they can be compared.
        """
        if self.inside:
            raise GrammarError(f"{where}: uniqueItems inside of items that have to differ is not supported")
        with self._one_form():
            first = [self._item(each, f"{where}/prefixItems/{n}") for n, each in enumerate(heads)]
            rest = None if items is False else self._item(items, f"{where}/items")
        found = self.grammar.add("unique_array", EMPTY)
        self.grammar.unique[found.name] = "array"
        self._arrays.append((found.name, first, rest, low, high, where))
        return found

    def finish(self) -> None:
        """Bodies for the arrays, once all rules of their items are there.

        Raises:
            GrammarError: `minItems` above the number of different items.
        """
        left, sizes = [MAX_COUNTING], {}
        for name, heads, item, low, high, where in self._arrays:
            for each in {*heads, *([] if item is None else [item])}:
                if each not in sizes:
                    sizes[each] = self._num_texts(each, left, where)
            most = MOST_ITEMS if high is None else min(high, MOST_ITEMS)
            for place, head in enumerate(heads):  # as many items before it can be all that it may be
                if sizes[head] <= place:
                    most = min(most, place)
            most = min(most, len(heads) if item is None else max(sizes[item], len(heads)))
            if low > most:
                raise GrammarError(f"{where}: minItems of {low} where at most {most} different items are possible")
            body = array_text(self.compiler.layout, heads[:most], item if most > len(heads) else None, low, most)
            self.grammar.rules[name] = body

    def json(self, kind: str) -> Reference:
        """Any value of a kind: "any", "string", "number" or "integer"."""
        if not self.inside or kind == "integer":
            return Reference(f"json_{kind}")
        if kind == "string":
            return self.grammar.shared("unique_string", sequence(literal('"'), Repeat(UNIT), literal('"')))
        if kind == "number":
            return self.grammar.shared("unique_number", DECIMAL)
        if "unique_any" not in self.grammar.rules:
            self.grammar.rules["unique_any"] = EMPTY
            arrays = self.compiler.layout.braces("[", self.compiler.layout.some(Reference("unique_any"), 0, None), "]")
            scalars = [self.json("number"), self.json("string"), BOOLEAN, NULL]
            self.grammar.rules["unique_any"] = choice([*scalars, arrays])
        return Reference("unique_any")

    def number(self, wanted: Expression) -> Expression:
        """Those of the numbers `wanted` that are in one form."""
        if not self.inside:
            return self.grammar.shared("number_range", wanted)
        if wanted not in self.grammar.known:
            states = trim(_of_both(*(build(each, None, self.grammar.effort) for each in (wanted, DECIMAL))))
            alive = states[0].is_final or states[0].bytes_to
            self.grammar.known[wanted] = self.grammar.add_automaton("unique_range", states) if alive else self._none()
        return self.grammar.known[wanted]

    def value_text(self, value: object) -> str:
        """A value in one form.

        Raises:
            ValueError: a number that is none of JSON's.
        """
        if isinstance(value, float) and math.isfinite(value):
            return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
        if isinstance(value, dict):
            inner = (
                f"{json.dumps(key, ensure_ascii=False)}:{self.value_text(value[key])}" for key in self.ordered(value)
            )
            return "{" + ",".join(inner) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self.value_text, value)) + "]"
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    def ordered(self, names: Iterator[str] | dict[str, object]) -> list[str]:
        """Names of properties in the order in which the schema first speaks of them."""
        found = list(names)
        for name in found:
            self._places.setdefault(name, len(self._places))
        return sorted(found, key=self._places.__getitem__)

    @contextlib.contextmanager
    def _one_form(self) -> Iterator[None]:
        layout, self.compiler.layout = self.compiler.layout, Layout(EMPTY, literal(","), literal(":"))
        self.inside = True
        try:
            yield
        finally:
            self.inside, self.compiler.layout = False, layout

    def _item(self, schema: object, where: str) -> Reference:
        body = named(self.compiler, schema, where)
        if body not in self._items:
            self._items[body] = self.grammar.add("unique_item", body)
            self.grammar.unique[self._items[body].name] = "item"
        return self._items[body]

    def _none(self) -> Reference:
        return self.grammar.shared("nothing", choice([]))

    def _num_texts(self, item: Reference, left: list[int], where: str) -> int:
        """How many different items there are; `MANY`: so many, or more."""
        rules, todo = {}, [item.name]
        while todo:
            name = todo.pop()
            if name not in rules:
                rules[name] = self.grammar.rules[name]
                todo += references(rules[name])
        automata = {name: states for name, states in self.grammar.automata.items() if name in rules}
        try:
            alone = Grammar(rules, item.name, automata, self.grammar.effort).compile()
        except NoTextError:
            return 0
        pushdown = Pushdown(alone, 1)
        pushdown.budget.left = left[0]
        try:
            return num_texts(pushdown, pushdown.number(pushdown.start))
        except GrammarError:
            raise GrammarError(f"{where}: uniqueItems of items that are too many and too long to be counted") from None
        finally:
            left[0] = int(pushdown.budget.left)


def _of_both(first: list[State], second: list[State]) -> list[State]:
    """The automaton of the texts of both, which know no rules."""
    numbers, states, todo = {(0, 0): 0}, [State()], [(0, 0)]
    while todo:
        pair = todo.pop()
        one, other = first[pair[0]], second[pair[1]]
        state = states[numbers[pair]]
        state.is_final = one.is_final and other.is_final
        for bits, target in one.bytes_to:
            for its, its_target in other.bytes_to:
                if bits & its:
                    behind = target, its_target
                    if behind not in numbers:
                        numbers[behind] = len(states)
                        states.append(State())
                        todo.append(behind)
                    state.bytes_to.append((bits & its, numbers[behind]))
    return states


assert MOST_ITEMS < MANY
