"""The checks that our settings share. Upstream has no twin: pydantic checks there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mini_vllm.utils.checks import is_int, is_real, require, shown


def _list_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(test, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str | Path)


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a whole number", is_int),
    "float": ("a number", is_real),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("a text", _is_text),
    "list[int]": ("a list of whole numbers", _list_of(is_int)),
    "list[str]": ("a list of texts", _list_of(_is_text)),
    "dict[str, Any]": ("a dict", lambda value: isinstance(value, Mapping)),
}
"""What the type of an argument says, in words, and whether a value is such a thing."""


def check_kind(name: str, value: Any, annotation: str, also: type | tuple[type, ...] = ()) -> None:
    """Raises ValueError unless `value` is None, `also`, or of one of the annotation's types; "Any" is no claim."""
    kinds = [kind.strip() for kind in annotation.split(" | ") if kind != "None"]
    if value is None or "Any" in kinds or isinstance(value, also):
        return
    said = " or ".join(_KINDS[kind][0] for kind in kinds)
    require(any(_KINDS[kind][1](value) for kind in kinds), name, value, said)


def plain(name: str, value: Any) -> Any:
    """A number of numpy as Python's own, in a dict of settings too.

    Raises ValueError for what no setting is: an array, which has no one truth, and a whole number beyond 64 bits, which
    may be too long to be printed.
    """
    if type(value) is dict:
        return {key: plain(f"{name}: {shown(key)}", each) for key, each in value.items()}
    require(not is_int(value) or int(value).bit_length() <= 64, name, value, "a number of at most 64 bits")
    if hasattr(value, "__array__") and not isinstance(value, type):
        require(getattr(value, "shape", None) == (), name, value, "no array")
        return value.item()
    return value


def whole_number(name: str, value: Any, minimum: int, note: str = "") -> int:
    """`value` as an int of at least `minimum`, or an error that names the argument."""
    if not is_int(value):
        raise ValueError(f"{name} must be a whole number, got {shown(value)}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}{note}, got {shown(value)}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """`value`, which must be True or False: "no" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")
    return value


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """`value`, which must be one of these words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {shown(value)}")
    return value
