"""Strings of a JSON schema: lengths, patterns, and the formats that a regular expression can tell.

A string of limited length holds no escapes, as with xgrammar; ours holds no control characters either, which JSON
forbids (xgrammar 0.2.8 lets them through there). A pattern is taken as the whole string, though JSON Schema would find
it anywhere: every whole match is one that can be found. Upstream has no twin.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
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
from mini_vllm.structured_output.automata.product import Product, marked_character
from mini_vllm.structured_output.automata.regex_parser import parse_regex
from mini_vllm.structured_output.automata.unicode_ranges import complement

_YEAR = r"(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAYS = r"(0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])"
_DATE = rf"({_YEAR}-({_DAYS})|{_LEAP_YEAR}-02-29)"
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_CLOCK}:[0-5]\d(\.\d+)?(Z|[+\-]{_CLOCK})"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [f"({_GROUP}:){{7}}({_GROUP}|:)", *(rf"({_GROUP}:){{{n}}}(:{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)),
     *(f"({_GROUP}:){{{n}}}:" for n in range(1, 7)), f":(:{_GROUP}){{1,7}}", "::",
     rf"::(ffff(:0{{1,4}})?:)?{_IPV4}", rf"({_GROUP}:){{1,4}}:{_IPV4}"]
)  # fmt: skip
_ATEXT = r"[A-Za-z0-9_!#$%&'*+/=?^`{|}~\-]"
_LOCAL = rf"({_ATEXT}{{1,64}}|{_ATEXT}(\.?{_ATEXT}){{0,31}})"


def _hostname(letter: str, short_labels: int) -> str:
    """Labels of at most 63 characters, few of them, or more labels of at most 30: 253 characters are never passed."""
    short, long = (rf"({letter}{{1,{n}}}|{letter}(-?{letter}){{0,{(n - 1) // 2}}})" for n in (30, 63))
    return rf"({long}(\.{long}){{0,{1 if short_labels < 6 else 2}}}|{short}(\.{short}){{0,{short_labels}}})"


_DOTTED = rf"{_ATEXT}(\.?{_ATEXT})*"
_LABELS = "[A-Za-z0-9](-?[A-Za-z0-9])*", "[A-Za-z0-9](-?[A-Za-z0-9]){0,30}"
_CLOCK_PARTS = r"(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
_UNRESERVED = r"A-Za-z0-9\-._~!$&'()*+,;="
_ENCODED = "%[0-9A-Fa-f]{2}"
_PATH, _QUERY = f"([{_UNRESERVED}:@/]|{_ENCODED})", f"([{_UNRESERVED}:@/?]|{_ENCODED})"
_AUTHORITY = rf"//[{_UNRESERVED}]*(:\d*)?(/{_PATH}*)?"
_ABSOLUTE = f"/(([{_UNRESERVED}:@]|{_ENCODED}){_PATH}*)?"
_URI_END = rf"(\?{_QUERY}*)?(#{_QUERY}*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.\-]*:({_AUTHORITY}|{_ABSOLUTE}|([{_UNRESERVED}:@]|{_ENCODED}){_PATH}*){_URI_END}"
_NO_SCHEME = rf"([{_UNRESERVED}@]|{_ENCODED})+(/{_PATH}*)?"
_VARIABLE = r"[A-Za-z0-9_](\.?[A-Za-z0-9_])*(:[1-9]\d{0,3}|\*)?"
_LITERAL = r"([A-Za-z0-9\-._~!$&()*+,;=:@/?#]|%[0-9A-Fa-f]{2})"
_POINTER = "(/([^/~]|~[01])*)*"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P((\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)(T{_CLOCK_PARTS})?|T{_CLOCK_PARTS}|\d+W)",
    "email": f"{_LOCAL}@{_hostname('[A-Za-z0-9]', 5)}",
    "hostname": _hostname("[a-z0-9]", 7),
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _URI,
    "uri-reference": f"({_URI}|({_AUTHORITY}|{_ABSOLUTE}|{_NO_SCHEME}|){_URI_END})",
    "uri-template": rf"({_LITERAL}|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
}
"""Formats that are kept: what is written has the form, its lengths and ranges, and not all that has them is written.

date, time (RFC 3339): 29 February in leap years, years from 0001 on; second 60 is never written. hostname (RFC 1035):
labels of 63 characters and names of 253; either up to three labels, or up to eight of 30 characters each; no two
hyphens in a row, which international names reserve. email (RFC 5321): a local part of 64, domains as above, 254 in all;
no quoted local parts, no addresses in brackets. uri (RFC 3986): a host without users, percent signs or addresses in
brackets, a port of digits. uri-template (RFC 6570): no characters beyond ASCII.
"""
_BOUNDED = {
    "hostname": [rf"{_free}(\.{_free})*".replace("A-Z", "") for _free in _LABELS],
    "email": [rf"{_local}@{_free}(\.{_free})*" for _local, _free in zip((_DOTTED, _LOCAL), _LABELS, strict=True)],
}
"""The same for texts of at most 63 characters, and of at most 253."""


def string_body(grammar: Grammar, schema: Mapping[str, Any], where: str) -> Expression:
    """Strings that obey `minLength`, `maxLength`, `pattern` and `format`, any of them together.

    Raises:
        GrammarError: an unknown format, a pattern that cannot be read, or a product of too many states.
    """
    low, high = _length(schema, "minLength", where) or 0, _length(schema, "maxLength", where)
    if high is not None and low > high:
        return choice([])
    wanted = [_format(schema["format"], where, high)] if "format" in schema else []
    unwanted: list[str] = []
    if "pattern" in schema:
        if not isinstance(schema["pattern"], str):
            raise GrammarError(f"{where}: pattern must be text")
        pattern, more, unwanted = split_lookaheads(schema["pattern"])
        wanted += [pattern, *more]
    if not wanted and not low and high is None:
        return Reference("json_string")
    if not wanted:
        return grammar.shared("string_of_length", _quoted(Repeat(PLAIN, low, high)))
    try:
        if len(wanted) == 1 and not unwanted and not low and high is None:
            return grammar.shared("string_matching", _quoted(_read(wanted[0])))
        return _product(grammar, wanted, unwanted, low, high)
    except GrammarError as error:
        raise GrammarError(f"{where}: {error}") from None


def _product(grammar: Grammar, wanted: list[str], unwanted: list[str], low: int, high: int | None) -> Expression:
    """All of them at once. Lengths that the patterns keep by themselves change nothing."""
    key = tuple(wanted), tuple(unwanted), low, high
    if key in grammar.known:
        return grammar.known[key]
    read = functools.partial(parse_regex, character=marked_character)
    product = Product(
        [read(each, complement(LINE_ENDS)) for each in wanted],
        [read(each, complement([(10, 10)]), widest=True) for each in unwanted],
        grammar.effort,
    )
    shortest, longest = product.shortest, product.longest
    if shortest is None:
        return choice([])
    low = 0 if shortest >= low else low
    high = None if high is None or (longest is not None and longest <= high) else high
    if len(wanted) == 1 and not unwanted and not low and high is None:
        return grammar.shared("string_matching", _quoted(_read(wanted[0])))
    states = product.states(low, high)
    if not states:
        return choice([])
    body = _quoted(grammar.add_automaton("text_matching", states))
    grammar.known[key] = grammar.add("string_matching", body)
    return grammar.known[key]


def split_lookaheads(pattern: str) -> tuple[str, list[str], list[str]]:
    """A pattern without the lookaheads at its very start, what they want, and what they do not want to match.

    `^(?!^[-.]*$)[-.0-9]+$` is all texts of [-.0-9]+ that are none of [-.]*. A lookahead elsewhere is left where it is.
    """
    rest = pattern.removeprefix("^")
    kinds: dict[str, list[str]] = {"=": [], "!": []}
    while rest[:3] in ("(?=", "(?!"):
        end = _end_of_group(rest)
        inner = rest[3 : end - 1]
        if end < 0 or _has_alternatives(inner):
            break
        closed = inner.endswith("$") and not inner.endswith("\\$")
        kinds[rest[2]].append(inner if closed else inner + r"[\s\S]*")
        rest = rest[end:].removeprefix("^")
    if _has_alternatives(rest) and (kinds["="] or kinds["!"]):
        return pattern, [], []  # the lookahead is the first alternative's alone
    return (rest, kinds["="], kinds["!"]) if kinds["="] or kinds["!"] else (pattern, [], [])


def _end_of_group(text: str) -> int:
    """Behind the bracket that closes the group at the start; -1: nothing does."""
    return next((at + 1 for at, depth in _depths(text) if depth == 0), -1)


def _has_alternatives(text: str) -> bool:
    return any(text[at] == "|" and depth == 0 for at, depth in _depths(text))


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """(place, groups that are open behind it) of each character that is neither escaped nor in brackets."""
    depth, at, in_bracket = 0, 0, False
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] in "[]":
            in_bracket = text[at] == "["
        elif not in_bracket:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            yield at, depth
        at += 1


def _quoted(body: Expression) -> Expression:
    return sequence(literal('"'), body, literal('"'))


def _length(schema: Mapping[str, Any], key: str, where: str) -> int | None:
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise GrammarError(f"{where}: {key} must be a whole number of at least 0, got {value!r}")
    return int(value)


def _format(name: object, where: str, high: int | None) -> str:
    if not isinstance(name, str) or name not in FORMATS:
        raise GrammarError(f"{where}: the format {name!r} is not supported; there are {', '.join(FORMATS)}")
    if high is not None and high <= 253 and name in _BOUNDED:  # the length is counted, and need not be in the form
        return _BOUNDED[name][high > 63]
    return FORMATS[name]


def _read(pattern: str) -> Expression:
    return parse_regex(pattern, complement(LINE_ENDS), string_character)
