"""Two schemas at once: what `allOf` means, and what stands beside `$ref`, `anyOf` and `oneOf`. Upstream has no twin."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.automata.json_numbers import exact

Schema = Mapping[str, Any]

MAX_ALTERNATIVES = 1000
"""Of `anyOf`, multiplied by those of other parts of an `allOf`."""

KEYWORDS_OF = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "object": (
        "properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties",
        "propertyNames",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
}  # fmt: skip
ALL_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_REFUSED = (
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains",
    "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties", "additionalItems", "$dynamicRef",
    "$recursiveRef", "nullable",
)  # fmt: skip
_KEPT = frozenset(
    ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", *(k for each in KEYWORDS_OF.values() for k in each))
)
_HIGHEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def without_annotations(schema: Schema, where: str) -> dict[str, Any]:
    """The keywords that constrain a value. Raises GrammarError for one that does and is not supported."""
    for key in _REFUSED:
        if key in schema and not (key == "nullable" and schema[key] is False):
            raise GrammarError(f"{where}: the keyword {key!r} is not supported")
    kept = {key: value for key, value in schema.items() if key in _KEPT}
    if not isinstance(kept.get("uniqueItems", True), bool):
        raise GrammarError(f"{where}: uniqueItems must be true or false, got {json.dumps(kept['uniqueItems'])[:60]}")
    if kept.get("uniqueItems") is False:
        del kept["uniqueItems"]
    if "format" in kept and "type" in kept and "string" not in _listed(kept["type"]):
        del kept["format"]  # of numbers, in OpenAPI: an annotation
    return kept


def types_of(schema: Schema, where: str) -> list[str]:
    """Types that a schema without alternatives allows; without `type`, those that its keywords speak of."""
    if "type" not in schema:
        spoken = [kind for kind, keywords in KEYWORDS_OF.items() if any(key in schema for key in keywords)]
        return spoken or [kind for kind in ALL_TYPES if kind != "integer"]
    types = _listed(schema["type"])
    unknown = next((each for each in types if each not in ALL_TYPES), None)
    if unknown is not None or not types:
        raise GrammarError(f"{where}: type must be one of {', '.join(ALL_TYPES)}, got {json.dumps(schema['type'])}")
    return [each for each in dict.fromkeys(types) if not (each == "integer" and "number" in types)]


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def split_alternatives(schema: Schema, where: str) -> tuple[str, list[object], dict[str, Any]]:
    """("anyOf" or "oneOf", its schemas, what else the schema says)."""
    kind = "anyOf" if "anyOf" in schema else "oneOf"
    arms = schema[kind]
    if not isinstance(arms, list) or not arms:
        raise GrammarError(f"{where}: {kind} must be a list of schemas that is not empty")
    return kind, arms, {key: value for key, value in schema.items() if key != kind}


def merged(first: object, second: object, where: str) -> object:
    """A schema for what both allow. Raises GrammarError where they cannot be put into one."""
    if first is False or second is False:
        return False
    if first is True or first == {}:
        return second
    if second is True or second == {}:
        return first
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        raise GrammarError(f"{where}: a schema is an object or a boolean")
    a, b = without_annotations(first, where), without_annotations(second, where)
    if "const" in a and "const" in b:
        if not same_value(a["const"], b["const"]):
            return False
        b["const"] = a["const"]
    both = {**a, **b}
    for key in a.keys() & b.keys():
        if a[key] != b[key]:
            both[key] = _merged_keyword(key, a[key], b[key], where)
            if both[key] == [] and key in ("type", "enum"):
                return False
    if ("patternProperties" in a) != ("patternProperties" in b) and "additionalProperties" in both:
        raise GrammarError(f"{where}: patternProperties and additionalProperties are not supported together")
    if "properties" in both or "additionalProperties" in both:
        both["properties"] = _merged_properties(a, b, where)
    if "items" in both and ("prefixItems" in a) != ("prefixItems" in b):
        raise GrammarError(f"{where}: prefixItems and items of different parts are not supported together")
    return both


def _merged_keyword(key: str, a: Any, b: Any, where: str) -> Any:
    if key in _HIGHEST:
        return max(a, b)
    if key in _LOWEST:
        return min(a, b)
    if key == "type":
        types = [x for x in _listed(a) for y in _listed(b) if x == y or (x == "integer" and y == "number")]
        types += [y for y in _listed(b) for x in _listed(a) if y == "integer" and x == "number"]
        return list(dict.fromkeys(types))
    if key == "enum":
        return [x for x in a if any(same_value(x, y) for y in b)]
    if key == "required":
        return list(dict.fromkeys([*a, *b]))
    if key in ("items", "additionalProperties"):
        return merged(a, b, where)
    if key == "properties":
        return None  # by `_merged_properties`
    if key == "anyOf":
        if len(a) * len(b) > MAX_ALTERNATIVES:
            raise GrammarError(f"{where}: allOf multiplies the alternatives to more than {MAX_ALTERNATIVES}")
        return [merged(x, y, where) for x in a for y in b]
    raise GrammarError(f"{where}: two different values of {key!r} are not supported together")


def _merged_properties(a: Schema, b: Schema, where: str) -> dict[str, Any]:
    """Each side's `additionalProperties` holds for the properties that only the other side names."""
    ours, theirs = a.get("properties", {}), b.get("properties", {})
    result: dict[str, Any] = {}
    for name in [*ours, *(each for each in theirs if each not in ours)]:
        left = ours.get(name, a.get("additionalProperties", True))
        right = theirs.get(name, b.get("additionalProperties", True))
        result[name] = merged(left, right, where)
    return result


def same_value(a: object, b: object) -> bool:
    """Equality of JSON values: 1 is 1.0, but not true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    return a == b


def type_of_value(value: object) -> str:
    """The narrowest type of a JSON value."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def allows_value(schema: Schema, value: object, where: str) -> bool:
    """Whether a value of an `enum` or `const` obeys what stands beside it."""
    for key, limit in schema.items():
        if key == "type":
            kind, types = type_of_value(value), _listed(limit)
            if kind not in types and not (kind == "integer" and "number" in types):
                return False
        elif key == "enum":
            if not any(same_value(value, each) for each in limit):
                return False
        elif key in _CHECKS:
            applies, holds = _CHECKS[key]
            if isinstance(value, applies) and not isinstance(value, bool) and not holds(value, limit):
                return False
        elif key != "const":
            raise GrammarError(f"{where}: {key!r} beside enum or const is not supported")
    return True


_CHECKS: dict[str, tuple[Any, Any]] = {
    "minimum": ((int, float), lambda value, limit: value >= limit),
    "maximum": ((int, float), lambda value, limit: value <= limit),
    "exclusiveMinimum": ((int, float), lambda value, limit: value > limit),
    "exclusiveMaximum": ((int, float), lambda value, limit: value < limit),
    "multipleOf": ((int, float), lambda value, step: exact(value) % exact(step) == 0),
    "minLength": (str, lambda value, limit: len(value) >= limit),
    "maxLength": (str, lambda value, limit: len(value) <= limit),
    "minItems": (list, lambda value, limit: len(value) >= limit),
    "maxItems": (list, lambda value, limit: len(value) <= limit),
    "uniqueItems": (list, lambda value, _: not any(itertools.starmap(same_value, itertools.combinations(value, 2)))),
}
