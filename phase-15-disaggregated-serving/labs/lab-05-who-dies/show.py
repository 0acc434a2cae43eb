"""Your controller beside the designs of others, or with LAB_IMPL=solution the reference; with a number, one of the
README's mistakes and the shortest way to it (`show.py 7`). Given material."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.contract.mistakes import apply_patch, patches, read_mistake  # noqa: E402
from course.labs import load  # noqa: E402

walks = load(HERE / "walk.py")
world = walks.world


class Deaf:
    """A controller that is told of no death and no failed read."""

    def __init__(self, controller: Any) -> None:
        self.start, self._handle = controller.start, controller.handle

    def handle(self, memo: Any, event: tuple[Any, ...]) -> tuple[Any, list[tuple[Any, ...]]]:
        return (memo, []) if event[0] in ("lost", "failed") else self._handle(memo, event)


def survived(controller: Any, name: str) -> tuple[int, int]:
    """(in how many states without a death so far the engine may die and nothing goes wrong, of how many)."""
    here = world.World(controller)
    states = reached(here, [here.start()])
    return sum(_is_well(here, world.kill(state, name)) for state in states), len(states)


def reached(here: Any, first: list[Any]) -> list[Any]:
    """All states from some first ones on, in the order of the moves."""
    todo, seen = list(first), set(first)
    for state in todo:
        new = [after for after in (move() for _, move in here.own_moves(state)) if after not in seen]
        seen.update(new)
        todo += dict.fromkeys(new)
    return todo


def _is_well(here: Any, state: Any) -> bool:
    try:
        for each in reached(here, [state]):
            if next(here.own_moves(each), None) is None:
                world.check_rest(each)
    except world.Bad:
        return False
    return True


def show(lab: ModuleType) -> str:
    """A table of designs, and what one that does not listen survives."""
    try:
        largest = walks.explore(lab.Controller(), 2, True)
    except NotImplementedError as error:
        return f"your controller is not written yet: {error}"
    lines = [f"your controller, two deaths and an abort: {largest}"]
    if largest.bad:
        return lines[0]
    lines += ["", "           prefills at most         tokens made      P holds blocks"]
    lines += ["           with 0  1  2  3 deaths   with one death   (no death), in"]
    for name, make in {"yours": lab.Controller, **load(HERE / "designs.py").DESIGNS}.items():
        runs = [walks.explore(make(), deaths) for deaths in range(4)]
        most = "  ".join(str(run.most_prefills) for run in runs)
        held = f"{runs[0].p_holds} of {runs[0].states} states"
        lines.append(f"{name:<16} {most}          {runs[1].most_tokens}                {held}")
    (p, number), (d, _) = (survived(Deaf(lab.Controller()), name) for name in "PD")
    lines += ["", f"yours, deaf: P may die in {p} of {number} states and nobody notices, D in {d}"]
    return "\n".join(lines)


def mistake(number: int) -> str:
    """The shortest way on which a mistake of the README becomes a fault."""
    patch = read_mistake(patches(HERE)[number - 1])
    lab = ModuleType("mistake")
    sys.modules[lab.__name__] = lab
    exec(apply_patch((HERE / "solution.py").read_text(encoding="utf-8"), patch.diff), lab.__dict__)
    for deaths, abort in ((0, False), (0, True), (1, False), (2, False), (2, True)):
        found = walks.explore(lab.Controller(), deaths, abort)
        if found.bad:
            moves = "\n".join(f"{at:4} {words}" for at, words in enumerate(found.path[: walks.LONGEST]))
            return f"{patch.words}\n{moves}\n     {found.bad}"
    return f"{patch.words}\n     no order of moves shows it"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(mistake(int(sys.argv[1])))
    else:
        print(show(load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")))
