"""Strings of a JSON schema: lengths, patterns, and the formats that a regular expression can tell.

A string of limited length holds no escapes, as with xgrammar; ours holds no control characters either, which JSON
forbids (xgrammar 0.2.8 lets them through there). A pattern is taken as the whole string, though JSON Schema would find
it anywhere: every whole match is one that can be found. Upstream has no twin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.structured_output.automata.expression import (
    Expression,
    GrammarError,
    Reference,
    Repeat,
    choice,
    literal,
    sequence,
)
from mini_vllm.structured_output.automata.grammar import Grammar
from mini_vllm.structured_output.automata.json_text import LINE_ENDS, PLAIN, string_character
from mini_vllm.structured_output.automata.regex_parser import parse_regex
from mini_vllm.structured_output.automata.unicode_ranges import complement

_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_CLOCK}:([0-5]\d|60)(\.\d+)?(Z|[+\-]{_CLOCK})"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [f"({_GROUP}:){{7}}({_GROUP}|:)", *(rf"({_GROUP}:){{{n}}}(:{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)),
     *(f"({_GROUP}:){{{n}}}:" for n in range(1, 7)), f":(:{_GROUP}){{1,7}}", "::",
     rf"::(ffff(:0{{1,4}})?:)?{_IPV4}", rf"({_GROUP}:){{1,4}}:{_IPV4}"]
)  # fmt: skip
_ATOM = r"[A-Za-z0-9_!#$%&'*+/=?^`{|}~\-]+"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9\-]*[A-Za-z0-9])?"
_CLOCK_PARTS = r"(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
_URI_CHARACTER = r"([A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})"
_URI_REST = r"([A-Za-z0-9\-._~!$&'()*+,;=@/?]|%[0-9A-Fa-f]{2})"
_VARIABLE = r"[A-Za-z0-9_.]+(:[1-9]\d{0,3}|\*)?"
_POINTER = "(/([^/~]|~[01])*)*"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P((\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)(T{_CLOCK_PARTS})?|T{_CLOCK_PARTS}|\d+W)",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_LABEL}(\.{_LABEL})*",
    "hostname": rf"{_LABEL}(\.{_LABEL})*".replace("A-Z", ""),
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.\-]*:{_URI_CHARACTER}+(#{_URI_CHARACTER}*)?",
    "uri-reference": rf"([A-Za-z][A-Za-z0-9+.\-]*:|[/?]|){_URI_REST}*(#{_URI_CHARACTER}*)?",
    "uri-template": rf"({_URI_CHARACTER}|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
}
"""Formats that are kept: what is written has the form. That 30 February is no day, a regex does not know."""


def string_body(grammar: Grammar, schema: Mapping[str, Any], where: str) -> Expression:
    """Strings that obey `minLength`, `maxLength`, `pattern` or `format`.

    Raises:
        GrammarError: an unknown format, a pattern that cannot be read, or two of these kinds at once.
    """
    low, high = _length(schema, "minLength", where) or 0, _length(schema, "maxLength", where)
    kinds = [key for key in ("format", "pattern") if key in schema] + (["minLength"] if low else [])
    kinds += ["maxLength"] if high is not None else []
    kinds = ["minLength/maxLength" if key in ("minLength", "maxLength") else key for key in kinds]
    if len(set(kinds)) > 1:
        raise GrammarError(f"{where}: {' and '.join(dict.fromkeys(kinds))} are not supported together")
    if not kinds:
        return Reference("json_string")
    if kinds[0] == "format":
        return _matching(grammar, _format(schema["format"], where), where)
    if kinds[0] == "pattern":
        if not isinstance(schema["pattern"], str):
            raise GrammarError(f"{where}: pattern must be text")
        return _matching(grammar, schema["pattern"], where)
    if high is not None and low > high:
        return choice([])
    body = sequence(literal('"'), Repeat(PLAIN, low, high), literal('"'))
    return grammar.shared("string_of_length", body)


def _length(schema: Mapping[str, Any], key: str, where: str) -> int | None:
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise GrammarError(f"{where}: {key} must be a whole number of at least 0, got {value!r}")
    return int(value)


def _format(name: object, where: str) -> str:
    if not isinstance(name, str) or name not in FORMATS:
        raise GrammarError(f"{where}: the format {name!r} is not supported; there are {', '.join(FORMATS)}")
    return FORMATS[name]


def _matching(grammar: Grammar, pattern: str, where: str) -> Expression:
    try:
        body = parse_regex(pattern, complement(LINE_ENDS), string_character)
    except GrammarError as error:
        raise GrammarError(f"{where}: {error}") from None
    return grammar.shared("string_matching", sequence(literal('"'), body, literal('"')))
