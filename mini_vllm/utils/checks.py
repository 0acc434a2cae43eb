"""The small checks that parameters share: one sentence with the argument, its value and what is allowed.

Upstream has no twin: msgspec and pydantic check there, or nobody does.
"""

from __future__ import annotations

import contextlib
import difflib
import numbers
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def require(condition: bool, name: str, value: Any, allowed: str) -> None:
    """Raises ValueError "NAME must be ALLOWED, got VALUE." unless `condition`; a long value is cut."""
    if not condition:
        raise ValueError(f"{name} must be {allowed}, got {shown(value)}.")


@contextlib.contextmanager
def naming(what: str, value: Any) -> Iterator[None]:
    """Whatever the system says of a file or an address, argument and value are said first. Raises ValueError."""
    try:
        yield
    except UnicodeDecodeError:
        raise
    except (OSError, OverflowError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{what} {shown(value)}: {said}") from error


def shown(value: Any, limit: int = 120) -> str:
    """`repr` of a value, short enough for one line; a whole number too long to print is described."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        return f"a number of {value.bit_length()} bits" if is_int(value) else f"a {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}…"


def is_int(value: Any) -> bool:
    """True for a whole number, numpy's too; not for True and False."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """True for a number that can be ordered; not for True and False."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_list(name: str, value: Any, kind: type, allowed: str) -> None:
    """`value` is None or a list (any sequence but text) of `kind`. Raises ValueError."""
    if value is None:
        return
    matches = is_int if kind is int else lambda item: isinstance(item, kind)
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    require(is_list and all(matches(item) for item in value), name, value, allowed)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known name as half a sentence, or "" where none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
