"""Free text with tags in it, between which a schema holds: upstream's `structural_tag`.

    {"structures": [{"begin": "<f>", "schema": {…}, "end": "</f>"}], "triggers": ["<f"]}

Outside of tags any text may stand that holds no trigger. A trigger starts one of the tags that begin with it; where one
stands inside another ("b" and "abc"), the first that is whole counts, so that "ab" starts a tag of "b". This is
the older of the two forms that the pinned release takes; the newer one ({"type": "structural_tag", "format": …}), a
language of xgrammar's own, is refused by name. Upstream has no twin: `structural_tag.cc` of xgrammar does it there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mini_vllm.structured_output.automata.expression import (
    ALL_BYTES,
    EMPTY,
    ByteSet,
    Expression,
    GrammarError,
    Reference,
    choice,
    literal,
    renamed,
    sequence,
)
from mini_vllm.structured_output.automata.grammar import Grammar
from mini_vllm.structured_output.automata.json_schema import schema_grammar


def structural_tag_grammar(spec: str, any_whitespace: bool = True) -> Grammar:
    """Raises GrammarError for a text that is no such JSON, and for a tag that no trigger starts."""
    structures, triggers = _read(spec)
    grammar = Grammar()
    tags: dict[str, list[Expression]] = {trigger: [] for trigger in triggers}
    for number, each in enumerate(structures):
        begin, starts = each["begin"], [trigger for trigger in tags if each["begin"].startswith(trigger)]
        if not starts:
            raise GrammarError(f"structures[{number}]: begin {each['begin']!r} starts with none of the triggers")
        inner = _include(grammar, schema_grammar(each.get("schema", True), any_whitespace), f"tag_{number}_")
        for trigger in starts:
            rest = literal(begin[len(trigger) :])
            tags[trigger].append(sequence(rest, inner, literal(each["end"]), Reference("root")))
    _add_free_text(grammar, {trigger: choice(ways) for trigger, ways in tags.items()})
    return grammar


def _read(spec: str) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        tag = json.loads(spec)
    except ValueError as error:
        raise GrammarError(f"Invalid structural tag specification: {error}") from None
    if not isinstance(tag, dict) or "structures" not in tag:
        raise GrammarError(
            "a structural tag needs 'structures' and 'triggers'; the form with 'format' is not supported"
        )
    structures, triggers = tag["structures"], tag.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise GrammarError("'structures' must be a list of tags that is not empty")
    if not isinstance(triggers, list) or not all(isinstance(each, str) and each for each in triggers):
        raise GrammarError("'triggers' must be a list of texts that are not empty")
    for number, each in enumerate(structures):
        if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in ("begin", "end")):
            raise GrammarError(f"structures[{number}] needs the texts 'begin' and 'end'")
    return structures, triggers


def _include(grammar: Grammar, other: Grammar, prefix: str) -> Reference:
    """Take over another grammar's rules under new names."""
    for name, body in other.rules.items():
        grammar.rules[prefix + name] = renamed(body, prefix)
    for name, states in other.automata.items():
        grammar.automata[prefix + name] = states
    grammar.unique.update((prefix + name, role) for name, role in other.unique.items())
    return Reference(prefix + other.root)


def _add_free_text(grammar: Grammar, after: dict[str, Expression]) -> None:
    """Rules `root` and `free_0`, `free_1`, …: text in which a trigger has been read up to some byte (Aho and
    Corasick's automaton). The text may end anywhere outside a tag."""
    ordered = _prefixes(trigger.encode() for trigger in after)
    names = {prefix: "root" if not prefix else f"free_{n}" for n, prefix in enumerate(ordered)}
    prefixes = set(ordered)
    whole = {trigger.encode(): ways for trigger, ways in after.items()}
    for prefix, name in names.items():
        ways: list[Expression] = [EMPTY]
        plain = ALL_BYTES
        for byte in range(256):
            read = prefix + bytes([byte])
            state = _longest_suffix(read, prefixes)
            found = [ways_on for trigger, ways_on in whole.items() if read.endswith(trigger)]
            if found:
                ways.append(sequence(ByteSet(1 << byte), choice(found)))
            elif state:
                ways.append(sequence(ByteSet(1 << byte), Reference(names[state])))
            else:
                continue
            plain &= ~(1 << byte)
        ways.append(sequence(ByteSet(plain), Reference("root")))
        grammar.rules[name] = choice(ways)


def _prefixes(triggers: Iterable[bytes]) -> list[bytes]:
    """Proper prefixes of all triggers, the empty one first."""
    return sorted(
        {trigger[:length] for trigger in triggers for length in range(len(trigger))}, key=lambda p: (len(p), p)
    )


def _longest_suffix(read: bytes, prefixes: set[bytes]) -> bytes:
    """Where the automaton stands after `read`: its longest end that is a prefix of some trigger."""
    return next((read[start:] for start in range(len(read)) if read[start:] in prefixes), b"")
