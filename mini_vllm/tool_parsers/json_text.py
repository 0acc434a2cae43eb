"""JSON that is still being written: what of it is inside of a string, whether it can go on so, what its members are.

No twin: upstream counts braces, or lets a library close what was cut and compares two readings.
"""

from __future__ import annotations

import json

_CLOSES = {"{": "}", "[": "]"}


def after_quote(where: str, char: str) -> str:
    """Where a JSON text stands behind one more character of it.

    Args:
        where: "" outside of strings, `"` inside of one, a backslash behind one that hides the next character.
    """
    if where == "\\":
        return '"'
    if where:
        return {'"': "", "\\": "\\"}.get(char, where)
    return '"' if char == '"' else ""


def members_of(text: str) -> tuple[dict[str, tuple[str, bool]], int | None]:
    """The members of the object that `text` begins with, which may be cut, and where it ends; None: it goes on.

    Returns: key to (its value as it stands, without spaces around, and whether all of it is there).
    """
    found: dict[str, tuple[str, bool]] = {}
    depth, quote, start, key = 0, "", 1, None
    for at, char in enumerate(text):
        if not quote and char in "{[":
            depth += 1
        elif not quote and char in "}]":
            depth -= 1
        if not quote and (depth == 0 or (depth == 1 and char in ",:")):
            piece, start = text[start:at].strip(), at + 1
            if char == ":":
                key = _as_key(piece)
            elif key is not None:
                found[key], key = (piece, True), None
            if depth == 0:
                return found, at + 1
        quote = after_quote(quote, char)
    if key is not None:
        found[key] = (text[start:].strip(), False)
    return found, None


def _as_key(piece: str) -> str:
    try:
        return str(json.loads(piece))
    except ValueError:
        return piece


class JsonPrefix:
    """Takes the beginning of one JSON value, character by character.

    `grows(text)`: whether what has been taken, and `text` behind it, may still become a JSON value; only then it is
    taken. Numbers and words are not looked into.
    """

    def __init__(self) -> None:
        self._state: tuple[str, str, str] = ("", "value", "")

    def grows(self, text: str) -> bool:
        """Shape: any text, spaces included. A value that has ended takes spaces alone."""
        stack, expects, quote = self._state
        for char in text:
            if not quote and (after := _after(stack, expects, char)):
                stack, expects = after
            elif not quote:
                return False
            quote = after_quote(quote, char)
        self._state = stack, expects, quote
        return True


def _after(stack: str, expects: str, char: str) -> tuple[str, str] | None:
    """(open brackets, what comes next) behind one more character outside of strings, or what comes behind the string
    that it opens; None where none of JSON's texts goes on so."""
    if expects == "scalar":
        if char.isalnum() or char in "+-.":
            return stack, expects
        expects = "end"
    if char.isspace():
        return stack, expects
    if expects in ("value", "first value"):
        if char == "]" and expects == "first value":
            return stack[:-1], "end"
        if char in _CLOSES:
            return stack + char, "first key" if char == "{" else "first value"
        return (stack, "end") if char == '"' else (stack, "scalar") if char.isalnum() or char in "-" else None
    if expects == "colon":
        return (stack, "value") if char == ":" else None
    if expects in ("key", "first key") and char == '"':
        return stack, "colon"
    if expects in ("end", "first key") and stack and char == _CLOSES[stack[-1]]:
        return stack[:-1], "end"
    if expects == "end" and stack and char == ",":
        return stack, "key" if stack[-1] == "{" else "value"
    return None


def rest_of_json(sent: str, whole: str) -> str | None:
    """What of `whole` comes behind `sent`, whatever spaces stand between their marks; None: it begins otherwise."""
    at, quote = 0, ""
    for char in sent:
        if not quote and char.isspace():
            continue
        while not quote and at < len(whole) and whole[at].isspace():
            at += 1
        if at == len(whole) or whole[at] != char:
            return None
        at += 1
        quote = after_quote(quote, char)
    return whole[at:]
