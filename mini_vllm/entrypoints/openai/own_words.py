"""Which errors have a sentence for a client, and which have only Python's own words.

Upstream has no twin: it answers 400 to any ValueError or TypeError, whoever raised it
(upstream/vllm/entrypoints/utils.py:347 — `create_error_response`).
"""

from __future__ import annotations

import dis
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pydantic

_RAISE = dis.opmap["RAISE_VARARGS"]
_HALF = "is not a text that UTF-8 can write: it has half of a surrogate pair"


def says_what_is_wrong(error: BaseException) -> bool:
    """True for an error that a `raise` of this package has made, or that the core has sent: its text is for the client.

    What Python, numpy or another library raises is a bug of ours, whatever its class is: a check is missing.
    """
    if type(error).__module__.startswith("mini_vllm") or isinstance(error, pydantic.ValidationError):
        return True
    last = error.__traceback__
    if last is None or getattr(error, "said_by_core", False):
        return True
    while last.tb_next is not None:
        last = last.tb_next
    return _is_ours(last)


def _is_ours(last: TracebackType) -> bool:
    code = last.tb_frame.f_code
    name = last.tb_frame.f_globals.get("__name__", "")
    return bool(name.startswith("mini_vllm") and code.co_code[last.tb_lasti] == _RAISE)


def refuse_half_surrogates(body: bytes) -> None:
    """Raises ValueError for a JSON body with a text that no answer could repeat, with the name of its field.

    JSON can spell half of a surrogate pair, and UTF-8 cannot: such a text fails where it is written, after the work.
    """
    if b"\\ud" not in body and b"\\uD" not in body:
        return
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return  # whoever reads it says what is wrong
    for path, text in _texts("", found):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            said = f"{_HALF}, {text[error.start]!r}, at character {error.start}."
            raise ValueError(f"{path or 'the body'} {said}") from None


def _texts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every text of a JSON value with its path, keys too; without recursion, since bodies may be deep."""
    waiting: list[tuple[str, Any]] = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            for key, item in value.items():
                yield f"a key of {path or 'the body'}", key
                waiting.append((f"{path}.{key}" if path else key, item))
        elif isinstance(value, list):
            waiting += ((f"{path}[{at}]", item) for at, item in enumerate(value))
