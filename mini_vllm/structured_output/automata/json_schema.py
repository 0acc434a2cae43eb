"""JSON schemas as rules, in the reading of xgrammar's strict mode: what a schema does not speak of is left out.

    {"type": "object", "properties": {"a": …, "b": …}, "required": ["b"]}
    ->  { ("a": … , "b": … | "b": …) }          in this order, nothing else, white space where JSON allows it

Whatever comes out is valid, and not everything that is valid can come out: properties stand in the schema's order, none
is added unless `additionalProperties` says so, an `enum` has one spelling. What could not be kept is refused by name.
Upstream has no twin: xgrammar's `json_schema_converter.cc` does it there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from mini_vllm.structured_output.automata.expression import Expression, GrammarError, Reference, choice, literal
from mini_vllm.structured_output.automata.grammar import Grammar
from mini_vllm.structured_output.automata.json_containers import array_body, object_body
from mini_vllm.structured_output.automata.json_merge import (
    allows_value,
    merged,
    split_alternatives,
    types_of,
    without_annotations,
)
from mini_vllm.structured_output.automata.json_numbers import (
    MOST_REMAINDERS,
    PRECISION,
    exact,
    integers_between,
    multiples_of,
    numbers_between,
)
from mini_vllm.structured_output.automata.json_oneof import require_disjoint
from mini_vllm.structured_output.automata.json_strings import string_body
from mini_vllm.structured_output.automata.json_text import BOOLEAN, NULL, Layout, add_json_rules, value_text
from mini_vllm.structured_output.automata.json_unique import UniqueArrays

MAX_RULES = 20_000


def schema_grammar(schema: object, any_whitespace: bool = True) -> Grammar:
    """Rules for the values that a schema describes.

    Raises:
        GrammarError: not a schema, or with a keyword that is not supported; names it, and where it stands.
    """
    return SchemaCompiler(schema, any_whitespace).compile()


class SchemaCompiler:
    """One schema on its way to rules. Equal subschemas become one rule, so that a recursive `$ref` ends."""

    def __init__(self, schema: object, any_whitespace: bool) -> None:
        self.root, self.layout, self.grammar = schema, Layout.of(any_whitespace), Grammar()
        self._rule_of: dict[tuple[bool, str], Reference] = {}
        self.unique = UniqueArrays(self)

    def compile(self) -> Grammar:
        """All rules; those of JSON itself too, of which the automata keep what is used."""
        add_json_rules(self.grammar, self.layout)
        self.grammar.rules["root"] = Reference("root")  # the name is taken while the schema is read
        self.grammar.rules["root"] = self.value(self.root, "#")
        self.unique.finish()
        return self.grammar

    def value(self, schema: object, where: str) -> Expression:
        """What a schema allows. where: its place, for messages."""
        if schema is True or schema == {}:
            return self.unique.json("any")
        if schema is False:
            return choice([])
        if not isinstance(schema, Mapping):
            raise GrammarError(f"{where}: a schema is an object or a boolean, got {json.dumps(schema)[:60]}")
        if where.count("/") > 200:
            raise GrammarError("the schema has more than 100 levels")
        schema = without_annotations(schema, where)
        if not schema:
            return self.unique.json("any")
        if "$ref" in schema:
            return self._reference(schema, where)
        if "allOf" in schema:
            return self.value(self._all_of(schema, where), where)
        if "anyOf" in schema or "oneOf" in schema:
            return self._alternatives(schema, where)
        if "const" in schema or "enum" in schema:
            return self._enumeration(schema, where)
        types = types_of(schema, where)
        return choice(self._typed(each, schema, where) for each in types)

    def named(self, hint: str, schema: object, where: str) -> Reference:
        """A rule for a schema, made once however often the schema stands there."""
        key = self.unique.inside, json.dumps(schema, sort_keys=False)
        found = self._rule_of.get(key)
        if found is None:
            if len(self.grammar.rules) > MAX_RULES:
                raise GrammarError(f"the schema needs more than {MAX_RULES} rules")
            found = self._rule_of[key] = self.grammar.add(hint, Reference("json_any"))
            self.grammar.rules[found.name] = self.value(schema, where)
        return found

    def resolve(self, pointer: object, where: str) -> object:
        """What a `$ref` within this document points at."""
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise GrammarError(f"{where}: $ref {pointer!r} is not supported: only '#' and '#/…', in the same document")
        found: Any = self.root
        for part in pointer.split("/")[1:]:
            part = _unquoted(part, pointer, where)
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, Mapping) and part in found:
                found = found[part]
            else:
                raise GrammarError(f"{where}: $ref {pointer!r} points at nothing")
        return found

    def expanded(self, schema: object, where: str) -> object:
        """A schema with the `$ref` and the `allOf` at its top worked in; both may come several times."""
        for _ in range(100):
            if not isinstance(schema, Mapping):
                return schema
            schema = without_annotations(schema, where)
            if "$ref" in schema:
                rest = {key: value for key, value in schema.items() if key != "$ref"}
                target = self.resolve(schema["$ref"], where)
                schema = merged(target, rest, where) if rest else target
            elif "allOf" in schema:
                schema = self._all_of(schema, where)
            else:
                return schema
        raise GrammarError(f"{where}: $ref leads in a circle without any value in it")

    def _reference(self, schema: Mapping[str, Any], where: str) -> Expression:
        if len(schema) > 1:  # siblings count, as in the drafts since 2019
            return self.value(self.expanded(schema, where), where)
        target = self.resolve(schema["$ref"], where)
        return self.named(str(schema["$ref"]).rpartition("/")[2] or "root", target, where)

    def _all_of(self, schema: Mapping[str, Any], where: str) -> object:
        parts = schema["allOf"]
        if not isinstance(parts, list) or not parts:
            raise GrammarError(f"{where}: allOf must be a list of schemas that is not empty")
        whole: object = {key: value for key, value in schema.items() if key != "allOf"}
        for number, part in enumerate(parts):
            whole = merged(whole, self.expanded(part, f"{where}/allOf/{number}"), where)
        return whole

    def _alternatives(self, schema: Mapping[str, Any], where: str) -> Expression:
        kind, arms, rest = split_alternatives(schema, where)
        expanded = [self.expanded(arm, f"{where}/{kind}/{number}") for number, arm in enumerate(arms)]
        if rest:
            arms = expanded = [merged(rest, arm, f"{where}/{kind}/{n}") for n, arm in enumerate(expanded)]
        if kind == "oneOf":
            require_disjoint(expanded, lambda s: self.expanded(s, where), where)
        return choice(self.value(arm, f"{where}/{kind}/{number}") for number, arm in enumerate(arms))

    def _enumeration(self, schema: Mapping[str, Any], where: str) -> Expression:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list):
            raise GrammarError(f"{where}: enum must be a list, got {json.dumps(values)[:60]}")
        try:
            beside = {key: value for key, value in schema.items() if key != "enum" or "const" in schema}
            text = self.unique.value_text if self.unique.inside else value_text
            return choice(literal(text(value)) for value in values if allows_value(beside, value, where))
        except ValueError as error:
            raise GrammarError(f"{where}: {error}") from None

    def _typed(self, kind: str, schema: Mapping[str, Any], where: str) -> Expression:
        if kind == "null":
            return NULL
        if kind == "boolean":
            return BOOLEAN
        if kind == "string":
            body = string_body(self.grammar, schema, where)
            return self.unique.json("string") if body == Reference("json_string") else body
        if kind in ("integer", "number"):
            return self._number(kind, schema, where)
        if kind == "object":
            return object_body(self, schema, where)
        return array_body(self, schema, where)

    def _number(self, kind: str, schema: Mapping[str, Any], where: str) -> Expression:
        given = {key: schema[key] for key in (*_BOUNDS, "multipleOf") if key in schema}
        for key, value in given.items():
            whole = isinstance(value, int) and not isinstance(value, bool)  # of any size, more than a float holds
            if not whole and not (isinstance(value, float) and math.isfinite(value)):
                raise GrammarError(f"{where}: {key} must be a number, got {json.dumps(value)}")
        if not given:
            return self.unique.json(kind)
        bounds = {key: exact(value) for key, value in given.items()}
        if "multipleOf" in bounds:
            return self._multiples(kind, bounds, where)
        low = max((bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds), default=None)
        high = min((bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds), default=None)
        low_open = low is not None and bounds.get("exclusiveMinimum") == low
        high_open = high is not None and bounds.get("exclusiveMaximum") == high
        if kind == "number":
            return self.unique.number(numbers_between(low, high, low_open, high_open))
        first = None if low is None else math.ceil(low) + (low_open and low.denominator == 1)
        last = None if high is None else math.floor(high) - (high_open and high.denominator == 1)
        return self.grammar.shared("integer_range", integers_between(first, last))

    def _multiples(self, kind: str, bounds: Mapping[str, Any], where: str) -> Expression:
        """Multiples of a number, all of them or those between two bounds, if these are few."""
        step = bounds["multipleOf"]
        if step <= 0:
            raise GrammarError(f"{where}: multipleOf must be above 0")
        if len(bounds) == 1:
            if kind == "number" and self.unique.inside:
                raise GrammarError(f"{where}: multipleOf of numbers that have to differ (uniqueItems) is not supported")
            try:
                return multiples_of(self.grammar, step, kind == "integer")
            except ValueError as error:
                raise GrammarError(f"{where}: {error} are supported") from None
        low = max((bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds), default=None)
        high = min((bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds), default=None)
        if low is None or high is None or (high - low) / step > MOST_REMAINDERS:
            most = f"a minimum and a maximum with at most {MOST_REMAINDERS} multiples between them"
            raise GrammarError(f"{where}: multipleOf beside a bound needs {most}")
        values = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
        without = {bounds.get("exclusiveMinimum"), bounds.get("exclusiveMaximum")}
        values = [each for each in values if each not in without and (kind == "number" or each.denominator == 1)]
        if any(10**PRECISION % each.denominator for each in values):
            raise GrammarError(f"{where}: multipleOf with more than {PRECISION} decimals is not supported")
        return choice(literal(_decimal_text(each)) for each in values)


def _unquoted(part: str, pointer: str, where: str) -> str:
    """A part of a URI's fragment, percent-decoded as UTF-8 (RFC 6901, section 6)."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise GrammarError(f"{where}: $ref {pointer!r} is no UTF-8 once it is percent-decoded") from None


def _decimal_text(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return str(Decimal(value.numerator) / Decimal(value.denominator))


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
