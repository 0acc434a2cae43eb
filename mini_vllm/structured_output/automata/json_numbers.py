"""Numbers between bounds, as expressions over their digits.

Exact for integers of any size. A decimal number with a bound is written without exponent and with at most six digits
behind the point, as xgrammar writes it. Upstream has no twin.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from mini_vllm.structured_output.automata.expression import (
    EMPTY,
    NOTHING,
    ByteSet,
    Expression,
    Reference,
    Repeat,
    byte_set,
    choice,
    literal,
    optional,
    sequence,
)
from mini_vllm.structured_output.automata.grammar import Grammar
from mini_vllm.structured_output.automata.json_text import DIGIT

PRECISION = 6
MOST_REMAINDERS = 1000
_NONZERO = byte_set("123456789")


def digits_between(low: str, high: str) -> Expression:
    """Digit strings of one length, from `low` to `high`; equal prefixes are read once."""
    if not low:
        return sequence()
    if low > high:
        return NOTHING
    if set(low) == {"0"} and set(high) == {"9"}:
        return Repeat(DIGIT, len(low), len(low))
    first, last = int(low[0]), int(high[0])
    if first == last:
        return sequence(_digit(first, first), digits_between(low[1:], high[1:]))
    rest = len(low) - 1
    parts: list[Expression] = [sequence(_digit(first, first), digits_between(low[1:], "9" * rest))]
    if last - first > 1:
        parts.append(sequence(_digit(first + 1, last - 1), Repeat(DIGIT, rest, rest)))
    parts.append(sequence(_digit(last, last), digits_between("0" * rest, high[1:])))
    return choice(parts)


def naturals_between(low: int, high: int | None) -> Expression:
    """Numbers from `low` (0 or more) to `high`, without leading zeros."""
    if high is None:
        longer = sequence(_NONZERO, Repeat(DIGIT, len(str(low))))
        return choice([naturals_between(low, int("9" * len(str(low)))), longer])
    if low > high:
        return NOTHING
    parts = []
    for length in range(len(str(low)), len(str(high)) + 1):
        start = max(low, 10 ** (length - 1) if length > 1 else 0)
        parts.append(digits_between(str(start), str(min(high, 10**length - 1))))
    return choice(parts)


def integers_between(low: int | None, high: int | None) -> Expression:
    """Integers from `low` to `high`, both included; None: no bound. There is no -0."""
    parts = []
    if low is None or low < 0:
        nearest = 1 if high is None or high >= 0 else -high
        parts.append(sequence(literal("-"), naturals_between(nearest, None if low is None else -low)))
    if high is None or high >= 0:
        parts.append(naturals_between(max(low or 0, 0), high))
    return choice(parts)


def numbers_between(
    low: Fraction | None, high: Fraction | None, low_open: bool = False, high_open: bool = False
) -> Expression:
    """Decimal numbers between two bounds; `…_open`: the bound itself is left out."""
    unit = Fraction(1, 10**PRECISION)
    start = None if low is None else _steps(low, unit, up=True, strict=low_open)
    end = None if high is None else _steps(high, unit, up=False, strict=high_open)
    parts = []
    if start is None or start < 0:
        nearest = 1 if end is None or end >= 0 else -end
        parts.append(sequence(literal("-"), _fixed_between(nearest, None if start is None else -start)))
    if end is None or end >= 0:
        parts.append(_fixed_between(max(start or 0, 0), end))
    return choice(parts)


def multiples_of(grammar: Grammar, step: Fraction, whole: bool) -> Expression:
    """Multiples of `step`, above 0, without exponent; `whole`: the integers among them, and no -0.

    A rule for each remainder of the digits read so far, counted in units of the last place that may be written, and
    for each number of places behind the point.

    Raises:
        ValueError: one with more than six places, or with more than `MOST_REMAINDERS` remainders.
    """
    step = Fraction(step.numerator) if whole else step
    places = next((n for n in range(PRECISION + 1) if 10**n % step.denominator == 0), None)
    size = 0 if places is None else int(step * 10**places)
    if places is None or size > MOST_REMAINDERS:
        raise ValueError(
            f"multipleOf {float(step):g}: at most {PRECISION} decimals and {MOST_REMAINDERS} steps of them"
        )

    def rule(place: int, rest: int) -> Reference:
        return Reference(f"multiple_{size}_{places}_{place}_{rest}")

    for place in range(places + 1):
        for rest in range(size):
            ways: list[Expression] = [EMPTY] if rest * 10 ** (places - place) % size == 0 else []
            if place == 0 or place < places:
                after = [(digit, (rest * 10 + digit) % size) for digit in range(10)]
                ways += [sequence(_digit(d, d), rule(place + (place > 0), r)) for d, r in after]
            if place == 0 < places:
                first = [(digit, (rest * 10 + digit) % size) for digit in range(10)]
                ways += [sequence(literal(f".{d}"), rule(1, r)) for d, r in first]
            grammar.rules[rule(place, rest).name] = choice(ways)
    nonzero = choice(sequence(_digit(d, d), rule(0, d % size)) for d in range(1, 10))
    if not places:
        return choice([literal("0"), sequence(optional(literal("-")), nonzero)])
    zero = choice([literal("0"), *(sequence(literal(f"0.{d}"), rule(1, d % size)) for d in range(10))])
    return sequence(optional(literal("-")), choice([zero, nonzero]))


def exact(value: object) -> Fraction:
    """A bound as it is written in the schema, without the error of a binary fraction."""
    return Fraction(Decimal(repr(value)) if isinstance(value, float) else Decimal(str(value)))


def _steps(bound: Fraction, unit: Fraction, up: bool, strict: bool) -> int:
    """The first multiple of `unit` inside the bound."""
    count = bound / unit
    nearest = -((-count.numerator) // count.denominator) if up else count.numerator // count.denominator
    if strict and nearest == count:
        nearest += 1 if up else -1
    return nearest


def _fixed_between(low: int, high: int | None) -> Expression:
    """Numbers from low to high, counted in millionths, with up to six digits behind the point."""
    if high is not None and low > high:
        return NOTHING
    one = 10**PRECISION
    first, first_rest = divmod(low, one)
    if high is None:
        whole = sequence(naturals_between(first + bool(first_rest), None), optional(_any_fraction()))
        return choice([whole, _with_whole(first, first_rest, one - 1)]) if first_rest else whole
    last, last_rest = divmod(high, one)
    if first == last:
        return _with_whole(first, first_rest, last_rest)
    parts = [_with_whole(first, first_rest, one - 1), _with_whole(last, 0, last_rest)]
    if last - first > 1:
        parts.append(sequence(naturals_between(first + 1, last - 1), optional(_any_fraction())))
    return choice(parts)


def _with_whole(whole: int, low: int, high: int) -> Expression:
    """`whole`, a point, and a fraction from low to high millionths; trailing zeros may be left out."""
    fraction = _fraction_between(f"{low:0{PRECISION}d}", f"{high:0{PRECISION}d}")
    tail: Expression = sequence(literal("."), fraction)
    return sequence(literal(str(whole)), optional(tail) if low == 0 else tail)


def _any_fraction() -> Expression:
    return sequence(literal("."), Repeat(DIGIT, 1, PRECISION))


def _fraction_between(low: str, high: str) -> Expression:
    """One to len(low) digits d such that d, filled up with zeros, lies between low and high (of equal length)."""
    first, last, rest_low, rest_high = int(low[0]), int(high[0]), low[1:], high[1:]
    parts: list[Expression] = []
    for digit in range(first, last + 1):
        inner_low = rest_low if digit == first else "0" * len(rest_low)
        inner_high = rest_high if digit == last else "9" * len(rest_high)
        may_end = int(inner_low or "0") == 0
        tail = _tail(inner_low, inner_high)
        parts.append(sequence(_digit(digit, digit), optional(tail) if may_end else tail))
    return choice(parts)


def _tail(low: str, high: str) -> Expression:
    if not low:
        return sequence()
    if set(low) == {"0"} and set(high) == {"9"}:
        return Repeat(DIGIT, 1, len(low))
    return _fraction_between(low, high)


def _digit(low: int, high: int) -> ByteSet:
    return byte_set("0123456789"[low : high + 1])
