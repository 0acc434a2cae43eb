"""The gate that a JSON file of a checkpoint or an adapter passes: each key is used, harmless, or refused by name.

Upstream has no twin: it asks for the keys that it knows, and passes over all others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.utils.checks import did_you_mean, is_int, is_real, shown
from mini_vllm.utils.json_files import load_json_object


@dataclass(frozen=True)
class Kind:
    """What a value must be: `said` in words, `allows` as a test."""

    said: str
    allows: Callable[[Any], bool]

    def __or__(self, other: Kind) -> Kind:
        return Kind(f"{self.said} or {other.said}", lambda value: self.allows(value) or other.allows(value))


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a text", lambda value: isinstance(value, str))
TEXTS = Kind("a list of texts", lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value))
COUNT = Kind("a whole number of at least 1", lambda value: is_int(value) and 1 <= value < 1 << 62)
WHOLE = Kind("a whole number", lambda value: is_int(value) and abs(value) < 1 << 62)
WHOLES = Kind("a list of whole numbers", lambda value: isinstance(value, list) and all(map(WHOLE.allows, value)))
NUMBER = Kind("a number", lambda value: is_real(value) and abs(value) <= sys.float_info.max)  # not NaN, not infinite
POSITIVE = Kind("a number above 0", lambda value: NUMBER.allows(value) and value > 0)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
NULL = Kind("null", lambda value: value is None)
EMPTY = Kind("empty", lambda value: value is None or value == {} or value == [])
ANYTHING = Kind("anything", lambda value: True)


def one_of(*values: Any) -> Kind:
    """One of these values, of their type: 1 is not true."""
    said = " or ".join("null" if value is None else repr(value) for value in values)
    return Kind(said, lambda value: any(type(value) is type(each) and value == each for each in values))


@dataclass(frozen=True)
class FileKeys:
    """The keys of one kind of file.

    used: key -> what it must be; the reader looks at it. fixed: key -> the values that change nothing here, and all
    others are refused. harmless: keys without influence on what is computed, whatever they say. needed: must be there.
    because: key -> half a sentence for a refusal.

    A null counts as absent, as in the libraries that write these files.
    """

    name: str
    used: Mapping[str, Kind] = field(default_factory=dict)
    fixed: Mapping[str, Kind] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    because: Mapping[str, str] = field(default_factory=dict)

    def outcome(self, key: str) -> str:
        """ "used", "fixed", "harmless" or "unknown"."""
        for kind in ("used", "fixed", "harmless"):
            if key in getattr(self, kind):
                return kind
        return "unknown"

    def read(self, raw: Mapping[str, Any], where: str = "", error: type[ValueError] = ValueError) -> dict[str, Any]:
        """The keys that are used and not null.

        Args:
            where: the file, for messages. error: what is raised.

        Raises:
            ValueError: names the file, the key, its value and what is allowed.
        """
        where = where or self.name
        for key, value in raw.items():
            allowed = self.used.get(key) or self.fixed.get(key)
            if allowed is None and key not in self.harmless:
                near = did_you_mean(key, [*self.used, *self.fixed])
                raise error(
                    f"{where}: unknown key {key!r} = {shown(value, 60)}: it could change what is computed{near}"
                )
            if allowed is not None and value is not None and not allowed.allows(value):
                why = f": {self.because[key]}" if key in self.because else ""
                raise error(f"{where}: {key} must be {allowed.said}, got {shown(value, 60)}{why}")
        missing = sorted(key for key in self.needed if raw.get(key) is None)
        if missing:
            raise error(f"{where} must have {', '.join(missing)}, got {shown(sorted(raw))}")
        return {key: raw[key] for key in self.used if raw.get(key) is not None}

    def read_file(self, path: Path, error: type[ValueError] = ValueError) -> dict[str, Any]:
        """As `read`, of a file that must be there."""
        return self.read(load_json_object(path, error), str(path), error)
