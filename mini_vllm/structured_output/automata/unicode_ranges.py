"""Characters as bytes: which sequences of bytes spell the characters of a range in UTF-8.

A range of code points is cut where the number of bytes changes, and then until each part is a product of byte ranges:
U+0800 to U+0FFF, for example, is E0, A0 to BF, 80 to BF. Surrogates (U+D800 to U+DFFF) have no UTF-8 and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mini_vllm.structured_output.automata.expression import NOTHING, ByteSet, Expression, choice, sequence

MAX_CODE_POINT = 0x10FFFF
Ranges = list[tuple[int, int]]
"""Code points from the first to the last of each pair, both included."""
_LAST_OF_LENGTH = (0x7F, 0x7FF, 0xFFFF, MAX_CODE_POINT)


def normalize(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, joined where they touch."""
    joined: Ranges = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other code points."""
    left, start = [], 0
    for low, high in normalize(ranges):
        if low > start:
            left.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        left.append((start, MAX_CODE_POINT))
    return left


def characters(ranges: Iterable[tuple[int, int]]) -> Expression:
    """One character out of `ranges`, as an expression over bytes; NOTHING where they are empty."""
    ascii_bits = 0
    sequences: list[Expression] = []
    for low, high in normalize(ranges):
        for first, last in _without_surrogates(low, high):
            if first <= 0x7F:
                top = min(last, 0x7F)
                ascii_bits |= ((1 << (top - first + 1)) - 1) << first
                first = top + 1
            sequences.extend(sequence(*map(_byte_range, pairs)) for pairs in _utf8_products(first, last))
    parts: list[Expression] = [ByteSet(ascii_bits)] if ascii_bits else []
    parts += sequences
    return choice(parts) if parts else NOTHING


def _without_surrogates(low: int, high: int) -> Iterator[tuple[int, int]]:
    if low < 0xD800:
        yield low, min(high, 0xD7FF)
    if high > 0xDFFF:
        yield max(low, 0xE000), high


def _byte_range(pair: tuple[int, int]) -> ByteSet:
    low, high = pair
    return ByteSet(((1 << (high - low + 1)) - 1) << low)


def _utf8_products(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """Products of byte ranges, first byte first, that together spell all code points from `low` to `high`."""
    while low <= high:
        last = min(high, next(bound for bound in _LAST_OF_LENGTH if low <= bound))
        first_bytes = chr(low).encode("utf-8")
        length = len(first_bytes)
        # The largest block of 64**k code points that starts at `low`, is aligned and does not go past `last`.
        for k in range(length - 1, -1, -1):
            size = 1 << (6 * k)
            if low % size == 0 and low + size - 1 <= last:
                blocks = (last - low + 1) // size
                same_prefix = size * 64 - low % (size * 64) if k < length - 1 else last - low + 1
                blocks = min(blocks, max(1, same_prefix // size))
                last_bytes = chr(low + blocks * size - 1).encode("utf-8")
                yield list(zip(first_bytes, last_bytes, strict=True))
                low += blocks * size
                break
