"""Given: a walk through every state of `world.py` that can be reached, and what it finds there."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.labs import load

world = load(Path(__file__).resolve().parent / "world.py")

MOST_STATES = 20_000
MOST_MOVES = 200  # a way that is longer has no end
LONGEST = 24  # moves of a path that are shown
Came = dict[Any, tuple[Any, str] | None]  # a state, and the one before it with the move
Graph = dict[Any, list[tuple[Any, int, int]]]  # a state; after each move: the state, prefills sent, tokens made


@dataclass
class Walk:
    """What `explore` saw. bad: what went wrong, or "". path: the moves that led there; no way is shorter."""

    states: int = 0
    edges: int = 0
    bad: str = ""
    path: list[str] = field(default_factory=list)
    most_prefills: int = 0  # prefill commands on the way that has most of them; only where nothing is bad
    most_tokens: int = 0  # tokens that D makes, the same
    p_holds: int = 0  # states in which P holds blocks
    calls: list[tuple[Any, tuple[Any, ...], Any]] = field(default_factory=list)  # of `handle`: memo, event, answer

    def __str__(self) -> str:
        if not self.bad:
            return f"{self.states:,} states, {self.edges:,} moves, nothing bad"
        shown = self.path if len(self.path) <= LONGEST else [*self.path[:LONGEST], "…"]
        return f"{self.bad}. The way there, {len(self.path) - 1} moves: {' → '.join(shown)}"


def explore(controller: Any, max_kills: int = 0, abort: bool = False) -> Walk:
    """Every state that can be reached, by every order of moves, until something is bad, or the states are too many."""
    here, walk = world.World(controller, max_kills, abort), Walk()
    walk.calls = here.calls
    try:
        first = here.start()
    except world.Bad as error:
        return Walk(1, 0, str(error), ["start"])
    came: Came = {first: None}
    depth = {first: 0}
    begun = here.sent.get("prefill", 0)
    graph: Graph = {}
    todo = deque([first])
    while todo:
        state = todo.popleft()
        words, graph[state] = "", []
        try:
            if next(here.own_moves(state), None) is None:
                world.check_rest(state)
            for words, move in here.moves(state):
                here.sent = {}
                after = move()
                walk.edges += 1
                graph[state].append((after, here.sent.get("prefill", 0), int(words.startswith("D makes"))))
                if after not in came:
                    came[after], depth[after] = (state, words), depth[state] + 1
                    todo.append(after)
            words = ""
            if depth[state] > MOST_MOVES:
                raise world.Bad(f"after {MOST_MOVES} moves it still goes on: it can go round for ever")
            if len(came) > MOST_STATES:
                raise world.Bad(f"more than {MOST_STATES:,} states: does memo grow for ever?")
        except world.Bad as error:
            walk.states, walk.bad, walk.path = len(came), str(error), [*_path(came, state), *[words] * bool(words)]
            return walk
    walk.states, walk.p_holds = len(came), sum(bool(each.P.held) for each in came)
    return _measure(walk, graph, came, begun)


def _path(came: Came, state: Any) -> list[str]:
    path: list[str] = []
    step = came[state]
    while step is not None:
        path.append(step[1])
        step = came[step[0]]
    return ["start", *reversed(path)]


def _measure(
    walk: Walk,
    graph: Graph,
    came: Came,
    begun: int,
) -> Walk:
    """The most prefills and tokens on any way, from the ends backwards; where ways go in a circle, that is bad."""
    open_moves = {state: len(after) for state, after in graph.items()}
    before: dict[Any, list[Any]] = {state: [] for state in graph}
    for state, moves in graph.items():
        for after, _, _ in moves:
            before[after].append(state)
    ready = [state for state, number in open_moves.items() if not number]
    most: dict[Any, tuple[int, int]] = {}
    while ready:
        state = ready.pop()
        ways = [(most[after][0] + sent, most[after][1] + made) for after, sent, made in graph[state]] or [(0, 0)]
        most[state] = max(way[0] for way in ways), max(way[1] for way in ways)
        for each in before[state]:
            open_moves[each] -= 1
            if not open_moves[each]:
                ready.append(each)
    for state in graph:  # in the order in which they were found, so the first has the shortest way
        if state not in most and any(after not in most for after, _, _ in graph[state]):
            walk.bad, walk.path = "it can go round for ever", _path(came, _on_a_circle(state, graph, most))
            return walk
    first = next(iter(graph))
    walk.most_prefills, walk.most_tokens = most[first][0] + begun, most[first][1]
    return walk


def _on_a_circle(state: Any, graph: Graph, most: dict[Any, Any]) -> Any:
    seen: set[Any] = set()
    while state not in seen:
        seen.add(state)
        state = next(after for after, _, _ in graph[state] if after not in most)
    return state
