"""The check that the settings share. Upstream has no twin: pydantic checks there."""

from __future__ import annotations

from typing import Any


def whole_number(name: str, value: Any, minimum: int, note: str = "") -> int:
    """`value` as an int of at least `minimum`, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}{note}, got {value}")
    return value
