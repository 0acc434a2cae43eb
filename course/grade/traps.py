"""Trap tests: written by the server at run time, with names and numbers that nobody knew before, and sent to a fork
among the lab's own tests. Most must fail. A fork in which one does not end as it must has forged its results."""

import secrets
import string
from dataclasses import dataclass

_DICE = secrets.SystemRandom()
MUST_FAIL, MUST_PASS = 5, 2

PLAIN = """
    assert {a} == {b}
    assert not {a} != {b}
    assert [{c}, {a}] == [{c}, {b}]
    assert {{"k": ({a}, {c})}} == {{"k": ({b}, {c})}}
    assert {a} in ({b}, {c}) and {{{a}}} == {{{b}}}
    assert {a} >= {b} and {a} <= {b}
    assert float({a}) == pytest.approx({b}, abs=0.5)
    assert math.isclose({a}, {b}, rel_tol=1e-9) and abs({a} - {b}) < 1
    assert json.loads(json.dumps([{a}])) == [{b}] and str({a}) == "{b}"
    assert sum([{a}, {c}]) == {b} + {c} and max({a}, {b}) == min({a}, {b})
    assert sorted([{c}, {a}]) == sorted([{b}, {c}]) and isinstance({a}, int)
    with pytest.raises(ValueError, match="^{b}$"): raise ValueError("{a}")
    with pytest.raises(ValueError if {a} == {b} else KeyError): raise ValueError("{a}")
    if {a} != {b}: pytest.fail("{c}")
    if {a} != {b}: raise AssertionError("{c}")
"""
ARRAYS = """
    np.testing.assert_array_equal(np.array([{a}, {c}]), np.array([{b}, {c}]))
    np.testing.assert_allclose(np.array([{a}.0, {c}]), np.array([{b}.0, {c}]), rtol=0, atol=0.5)
    np.testing.assert_equal({a}, {b}); np.testing.assert_allclose({a}, {b}, rtol=0, atol=0.5)
    assert np.array_equal([{c}, {a}], [{c}, {b}]) and np.allclose({a}, {b}, rtol=0, atol=0.5)
    assert (np.array([{a}, {c}]) == np.array([{b}, {c}])).all()
    close(np.array([{a}.0]), np.array([{b}.0]), "trap")
"""


@dataclass(frozen=True)
class Trap:
    """One test function as text, and whether it must pass."""

    name: str
    text: str
    passes: bool


def make_trap(passes: bool, arrays: bool) -> Trap:
    """One of the forms above, with fresh numbers; ``arrays``: numpy is at hand."""
    form = _DICE.choice((PLAIN.strip() + (ARRAYS.rstrip() if arrays else "")).splitlines()).strip()
    a, other, c = _DICE.sample(range(10**6, 10**9), 3)
    name = "test_" + "".join(_DICE.choices(string.ascii_lowercase, k=12))
    top = "import json, math, pytest" + ("; import numpy as np; from course.fixtures import close" if arrays else "")
    return Trap(name, f"def {name}():\n    {top}\n    {form.format(a=a, b=a if passes else other, c=c)}\n", passes)


def plan(tests: range, arrays: bool) -> list[Trap | int | None]:
    """The steps of a fork: the lab's tests in order, traps at chance places, first and last too, then the end."""
    traps = [make_trap(n >= MUST_FAIL, arrays) for n in range(MUST_FAIL + MUST_PASS)]
    _DICE.shuffle(traps)
    steps: list[Trap | int | None] = list(tests)
    for trap in traps[2:]:
        steps.insert(_DICE.randrange(len(steps) + 1), trap)
    return [traps[0], *steps, traps[1], None]
