"""`oneOf`: exactly one of several schemas. An automaton cannot count how many hold, so they have to exclude each other.

Two schemas do where their types differ, where both name their values and share none, or where both are objects and
either share a required property that they describe differently (a discriminator), or one of them is closed and the
other requires a property that it does not have. Everything else is refused: with `anyOf` it is allowed. xgrammar proves
three of the four, and reads a `oneOf` that it cannot prove as `anyOf`, with a warning. Upstream has no twin.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.automata.json_merge import ALL_TYPES, MAX_ALTERNATIVES, same_value, type_of_value

MAX_LOOKS = 1_500_000
"""At parts of the schemas of one `oneOf`."""
MAX_DEPTH = 6
"""Of properties and alternatives inside each other that are compared."""


def require_disjoint(arms: Sequence[object], expanded: Callable[[object], object], where: str) -> None:
    """Raises GrammarError where no value can be shown to obey one arm alone. arms: without `$ref` at their top."""
    if len(arms) > MAX_ALTERNATIVES:
        raise GrammarError(f"{where}/oneOf: more than {MAX_ALTERNATIVES} schemas; write anyOf, which compares none")
    looks = itertools.count()

    def looked(schema: object) -> object:
        if next(looks) > MAX_LOOKS:
            raise GrammarError(f"{where}/oneOf: too many parts to compare; write anyOf, which compares none")
        return expanded(schema)

    for (i, first), (j, second) in itertools.combinations(enumerate(arms), 2):
        if not _are_disjoint(first, second, looked):
            raise GrammarError(
                f"{where}/oneOf: the schemas {i} and {j} may hold for the same value; write anyOf if that is meant"
            )


def _are_disjoint(first: object, second: object, expanded: Callable[[object], object], depth: int = 0) -> bool:
    if first is False or second is False:
        return True
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return False
    if not _types(first, expanded) & _types(second, expanded):
        return True
    if _values_differ(_values(first), _values(second)):
        return True
    if depth == MAX_DEPTH:
        return False
    for one, other in ((first, second), (second, first)):
        for kind in ("anyOf", "oneOf"):  # what stands beside the alternatives only makes them narrower
            if kind in one and all(_are_disjoint(expanded(arm), other, expanded, depth + 1) for arm in one[kind]):
                return True
    if not _types(first, expanded) == _types(second, expanded) == {"object"}:
        return False
    if _lacks_required(first, second) or _lacks_required(second, first):
        return True
    shared = set(first.get("required", ())) & set(second.get("required", ()))
    one, other = (each.get("properties", {}) for each in (first, second))
    described = ((expanded(one.get(name, {})), expanded(other.get(name, {}))) for name in shared)
    return any(_are_disjoint(mine, its, expanded, depth + 1) for mine, its in described)


def _lacks_required(closed: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether `other` requires a property that `closed` does not take."""
    if closed.get("additionalProperties") is not False or "patternProperties" in closed:
        return False
    return not set(other.get("required", ())) <= closed.get("properties", {}).keys()


def _types(schema: Mapping[str, Any], expanded: Callable[[object], object]) -> set[str]:
    """All types that may occur; an integer is a number."""
    for kind in ("anyOf", "oneOf"):
        if kind in schema:
            arms = [expanded(arm) for arm in schema[kind]]
            return set().union(*(_types(arm, expanded) if isinstance(arm, Mapping) else ALL_TYPES for arm in arms))
    values = _values(schema)
    if values is not None:
        return {_wide(type_of_value(value)) for value in values}
    given = schema.get("type", list(ALL_TYPES))
    return {_wide(each) for each in (given if isinstance(given, list) else [given])}


def _wide(kind: str) -> str:
    return "number" if kind == "integer" else kind


def _values(schema: object) -> list[object] | None:
    if not isinstance(schema, Mapping):
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _values_differ(first: list[object] | None, second: list[object] | None) -> bool:
    return first is not None and second is not None and not any(same_value(x, y) for x in first for y in second)
