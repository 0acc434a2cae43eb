"""Lab 15-05: every order of messages, deaths and an abort, in a world that is small enough for all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
walks = load(HERE / "walk.py")


@pytest.fixture(scope="module")
def walk(impl):
    """walk(deaths, abort): all that can happen to one of your controllers; each is walked once."""
    return cache(lambda deaths, abort: walks.explore(impl.Controller(), deaths, abort))


def holds(found):
    assert found.bad == "", f"{found}"


def test_nobody_dies(walk):
    found = walk(0, False)
    holds(found)
    assert found.most_prefills == 1, f"nobody died: got {found.most_prefills} prefill commands, expected 1"


def test_one_death_anywhere(walk):
    holds(walk(1, False))


def test_two_deaths(walk):
    holds(walk(2, False))


def test_abort_anywhere(walk):
    holds(walk(0, True))


def test_an_abort_and_a_death(walk):
    holds(walk(1, True))


def test_an_abort_and_two_deaths(walk):
    holds(walk(2, True))


@pytest.mark.parametrize("deaths", range(3))
def test_it_ends(walk, deaths):
    """No circles, no memo that grows: what still can happen becomes less with each move."""
    found = walk(deaths, False)
    endless = found.bad if "for ever" in found.bad and "client waits" not in found.bad else ""
    assert endless == "", f"{found}"
    assert found.states <= walks.MOST_STATES


def kept(controller):
    """What it and its class hold beside functions, in words: a list that grows reads otherwise afterwards."""
    names = {**vars(type(controller)), **getattr(controller, "__dict__", {})}
    return {name: repr(value) for name, value in names.items() if not name.startswith("__") and not callable(value)}


def sizes(module):
    """The length of each list, set and dictionary of a module."""
    held = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    return {name: len(value) for name, value in held.items() if isinstance(value, (list, set, dict))}


def test_pure(impl, walk):
    """Each call of a walk again, from the last to the first, on a controller that has not seen them."""
    calls, fresh = walk(2, False).calls, impl.Controller()
    assert calls, "start() gave nothing that could go on"
    anew = sizes(load(Path(impl.__file__)))
    assert sizes(impl) == anew, f"the module keeps what happened: after the walks {sizes(impl)}, when loaded {anew}"
    before = kept(fresh)
    for memo, event, answer in reversed(calls):
        again = fresh.handle(memo, event)
        assert again == answer, f"handle({memo}, {event}): got {again}, in the walk it was {answer}. Is state in self?"
    after = kept(fresh)
    assert after == before, f"the controller keeps {after}, before the calls it was {before}"


def test_your_prediction(impl, walk):
    found, mine = walk(1, False), impl.predicted_prefills()
    assert isinstance(mine, int), f"got {mine!r}, expected a number of commands"
    assert found.bad == "", f"your controller does not survive one death yet, so nobody can count: {found.bad}"
    assert mine == found.most_prefills, (
        f"you said {mine}, and your controller sends up to {found.most_prefills}. How many ways are there to hear of "
        "one death?"
    )


@pytest.mark.provided
@pytest.mark.parametrize("name", ("rerun", "keep", "patient"))
def test_other_designs_pass(name):
    found = walks.explore(load(HERE / "designs.py").DESIGNS[name](), 1, True)
    holds(found)
