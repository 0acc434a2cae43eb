"""The checks that our settings share. Upstream has no twin: pydantic checks there."""

from __future__ import annotations

from typing import Any

from mini_vllm.utils.checks import is_int, shown


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
