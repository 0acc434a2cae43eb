"""The kinds of wrong solutions that tests let pass: each operator makes one, which a lazy test passes and a good one
does not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from course.contract.mutants import Mutant, mutants

pytestmark = pytest.mark.maintainer

SOURCE = '''
import numpy as np


def blocks(tokens: int, block_size: int = 16) -> int:
    """How many blocks."""
    return -(-tokens // block_size)


def mean(x: np.ndarray) -> np.ndarray:
    """Of the last axis."""
    total = x.sum(axis=-1)
    return total / x.shape[-1]


def order(ids: list[int]) -> list[int]:
    return sorted(ids)


def by_age(ids: list[int], age: dict[int, int]) -> list[int]:
    return sorted(ids, key=lambda i: age[i])


def limit(wanted: int | None, most: int) -> int:
    return most if wanted is None else min(wanted, most)


def close(a: float, b: float) -> bool:
    return bool(np.isclose(a, b, rtol=1e-6))


class Pool:
    def __init__(self, free: int) -> None:
        self.free, self.users = free, []

    def take(self, who: str, n: int) -> None:
        fine = n >= 0
        if n > self.free or not fine:
            raise ValueError(f"{n} of {self.free}")
        mine = []
        mine.append(who)
        self.users += mine
        self.free -= n

    def evict(self, ids: list[int]) -> bool:
        for one in ids:
            if one < 0:
                return False
        while ids:
            self.users.remove(ids.pop())
        return True
'''
NAMES = {"blocks", "mean", "order", "by_age", "limit", "close", "Pool.__init__", "Pool.take", "Pool.evict"}


def made() -> dict[str, Mutant]:
    return {m.name: m for m in mutants(SOURCE, NAMES)}


def loaded(source: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(source, "lab", "exec", dont_inherit=True), space)
    return type("Lab", (), {name: staticmethod(value) for name, value in space.items() if callable(value)})


def kept(x: np.ndarray, lab: Any) -> bool:
    before = x.copy()
    return bool(np.allclose(lab.mean(x), 2.0)) and np.array_equal(x, before)


def refused(lab: Any) -> Any:
    pool = lab.Pool(3)
    with pytest.raises(ValueError, match="4 of 3"):
        pool.take("a", 4)
    return pool


KINDS: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "blocks: block_size -> its first value": (
        lambda lab: lab.blocks(17) == 2 and lab.blocks(5, 16) == 1,
        lambda lab: lab.blocks(17) == 2 and lab.blocks(17, 4) == 5,
    ),
    "blocks: block_size -> its default": (lambda lab: lab.blocks(17) == 2, lambda lab: lab.blocks(17, 4) == 5),
    "mean: x -> changed for the caller": (
        lambda lab: lab.mean(np.full((2, 3), 2.0))[1] == 2.0,
        lambda lab: kept(np.full((2, 3), 2.0), lab),
    ),
    "mean: total / x.shape[-1] -> a little off": (
        lambda lab: np.allclose(lab.mean(np.full(3, 2.0)), 2.0, atol=1e-12),
        lambda lab: np.allclose(lab.mean(np.full(3, 2.0)), 2.0, atol=1e-12, rtol=0),
    ),
    "order: sorted -> as text": (lambda lab: lab.order([3, 1]) == [1, 3], lambda lab: lab.order([10, 9]) == [9, 10]),
    "by_age: sorted -> as text": (
        lambda lab: lab.by_age([1, 2], {1: 5, 2: 4}) == [2, 1],
        lambda lab: lab.by_age([1, 2], {1: 10, 2: 9}) == [2, 1],
    ),
    "limit: wanted is None -> not wanted": (
        lambda lab: lab.limit(None, 5) == 5 and lab.limit(2, 5) == 2,
        lambda lab: lab.limit(0, 5) == 0,
    ),
    "close: rtol=1e-06 -> a thousand times that": (
        lambda lab: lab.close(1.0, 1.0) and not lab.close(1.0, 1.5),
        lambda lab: not lab.close(1.0, 1.0001),
    ),
    "Pool.take: if n > self.free or not fine: -> behind self.users += mine": (
        lambda lab: refused(lab).free == 3,
        lambda lab: refused(lab).users == [],
    ),
    "Pool.evict: for one in ids: -> behind while ids:": (
        lambda lab: lab.Pool(0).evict([]),
        lambda lab: not lab.Pool(0).evict([-1]),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_lazy_test_passes_it_and_a_good_one_does_not(name: str) -> None:
    lazy, good = KINDS[name]
    assert lazy(loaded(SOURCE)) and good(loaded(SOURCE))
    wrong = made()[name].source
    assert lazy(loaded(wrong))
    try:
        caught = not good(loaded(wrong))
    except Exception:
        caught = True
    assert caught


def test_what_nobody_could_see_is_not_made() -> None:
    names = list(made())
    assert not any("behind mine.append" in name for name in names), "its own list"
    assert not any("who -> its default" in name or "self ->" in name for name in names)
    assert "Pool.evict: while ids: -> behind" not in " ".join(names), "what writes is no check"


def test_the_source_is_as_before_and_every_mutant_parses() -> None:
    first, second = (list(mutants(SOURCE, NAMES)) for _ in range(2))
    assert first == second
    assert all(ast.dump(ast.parse(m.source)) != ast.dump(ast.parse(SOURCE)) for m in first)
    bare = list(mutants(SOURCE, NAMES, texts=False))
    assert [m.name for m in bare] == [m.name for m in first] and not any(m.source for m in bare)


def test_a_small_error_is_larger_than_rounding_and_smaller_than_carelessness() -> None:
    space: dict[str, Any] = {}
    exec(compile(made()["mean: total / x.shape[-1] -> a little off"].source, "lab", "exec"), space)
    for dtype, least, most in (("float64", 1e-9, 1e-5), ("float32", 1e-5, 1e-2), ("float16", 1e-2, 0.1)):
        error = abs(float(space["_off"](np.ones(1, dtype))[0]) - 1)
        assert least < error < most, dtype
    assert space["_off"](3.0) != 3.0
    for given, after in (([1, 2], [1, 2, 1]), ([], [None]), ({1: 2}, {1: 2, None: None})):
        space["_spoiled"](given)
        assert given == after
