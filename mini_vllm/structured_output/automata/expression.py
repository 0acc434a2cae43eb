"""What a rule's body is made of, at the level of bytes.

Five kinds: one byte out of a set, a sequence, a choice, a repetition, and a reference to a rule. Everything that users
write (regexes, EBNF, JSON schemas) becomes these. A set of bytes is a Python integer of 256 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ALL_BYTES = (1 << 256) - 1


class GrammarError(ValueError):
    """A grammar that cannot be used: what is wrong with it, in one sentence."""


@dataclass(frozen=True, slots=True)
class ByteSet:
    """One byte: bit b of `bits` says whether byte b may stand here."""

    bits: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """All items, one after the other; none: the empty text."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the items; none: nothing can stand here."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`item` at least `low` times and at most `high` times; None: as often as one likes."""

    item: Expression
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """What the rule of this name allows."""

    name: str


Expression = ByteSet | Sequence | Choice | Repeat | Reference

EMPTY = Sequence(())
NOTHING = Choice(())


def sequence(*items: Expression) -> Expression:
    """One after the other; a single item is itself."""
    return items[0] if len(items) == 1 else Sequence(items)


def choice(items: Iterable[Expression]) -> Expression:
    """One of them; a single item is itself."""
    kept = tuple(dict.fromkeys(items))
    return kept[0] if len(kept) == 1 else Choice(kept)


def optional(item: Expression) -> Expression:
    """`item`, or nothing."""
    return Repeat(item, 0, 1)


def literal(text: str | bytes) -> Expression:
    """Exactly this text, as UTF-8."""
    data = text.encode("utf-8") if isinstance(text, str) else text
    return sequence(*(ByteSet(1 << byte) for byte in data)) if data else EMPTY


def byte_set(characters: str) -> ByteSet:
    """One of these ASCII characters."""
    bits = 0
    for character in characters:
        bits |= 1 << ord(character)
    return ByteSet(bits)


def references(item: Expression) -> Iterator[str]:
    """Names of all rules that an expression refers to."""
    todo: list[Expression] = [item]
    while todo:
        each = todo.pop()
        if isinstance(each, Reference):
            yield each.name
        elif isinstance(each, Repeat):
            todo.append(each.item)
        elif isinstance(each, Sequence | Choice):
            todo.extend(each.items)


def renamed(item: Expression, prefix: str) -> Expression:
    """The same, with `prefix` before the name of every rule that it refers to."""
    if isinstance(item, Reference):
        return Reference(prefix + item.name)
    if isinstance(item, Sequence):
        return Sequence(tuple(renamed(each, prefix) for each in item.items))
    if isinstance(item, Choice):
        return Choice(tuple(renamed(each, prefix) for each in item.items))
    if isinstance(item, Repeat):
        return Repeat(renamed(item.item, prefix), item.low, item.high)
    return item


def can_end(item: Expression, known: set[str]) -> bool:
    """Whether an expression allows a text at all, where the rules `known` do."""
    if isinstance(item, ByteSet):
        return item.bits != 0
    if isinstance(item, Reference):
        return item.name in known
    if isinstance(item, Sequence):
        return all(can_end(each, known) for each in item.items)
    if isinstance(item, Choice):
        return any(can_end(each, known) for each in item.items)
    return item.low == 0 or can_end(item.item, known)


def can_be_empty(item: Expression, known: set[str]) -> bool:
    """Whether an expression allows the empty text, where the rules `known` do."""
    if isinstance(item, ByteSet):
        return False
    if isinstance(item, Reference):
        return item.name in known
    if isinstance(item, Sequence):
        return all(can_be_empty(each, known) for each in item.items)
    if isinstance(item, Choice):
        return any(can_be_empty(each, known) for each in item.items)
    return item.low == 0 or can_be_empty(item.item, known)


def prune(item: Expression, productive: set[str]) -> Expression:
    """Without references to rules that never end."""
    if isinstance(item, Reference):
        return item if item.name in productive else NOTHING
    if isinstance(item, Sequence):
        return Sequence(tuple(prune(each, productive) for each in item.items))
    if isinstance(item, Choice):
        return Choice(tuple(prune(each, productive) for each in item.items))
    if isinstance(item, Repeat):
        return Repeat(prune(item.item, productive), item.low, item.high)
    return item


def size(item: Expression) -> int:
    """About how many states an expression takes."""
    if isinstance(item, Sequence | Choice):
        return sum(map(size, item.items))
    if isinstance(item, Repeat):
        return size(item.item) * max(item.low + (item.high is None), item.high or 0, 1)
    return 1
