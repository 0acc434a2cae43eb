"""Strings that obey several things at once: patterns, what must not match, and a number of characters; one automaton.

A pattern is made an automaton with a mark before each character, so that characters are counted and not bytes, and the
automata are walked together, character by character: a character of a JSON string has one spelling, the same for all.

    states     (where each pattern stands, characters so far)
    ends       all patterns have ended, none that must not match has, and the number is right
    trimmed    what cannot come to an end is left out, so that no text is led into a corner

Upstream has no twin.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

from mini_vllm.structured_output.automata.expression import (
    ALL_BYTES,
    Expression,
    GrammarError,
    Reference,
    sequence,
)
from mini_vllm.structured_output.automata.json_text import string_character
from mini_vllm.structured_output.automata.rule_automaton import Effort, State, build
from mini_vllm.structured_output.automata.unicode_ranges import Ranges

MAX_PRODUCT_STATES = 60_000
"""Of one string: some tenths of a second."""
MAX_MERGING = 150_000
"""Looks at a node while nodes that are alike are merged; long chains would take minutes."""
MARK = "\0"
SINK = -1
Node = tuple[int, ...]
_chains = itertools.count(1)


def marked_character(ranges: Ranges) -> Expression:
    """One character of a JSON string behind a mark."""
    return sequence(Reference(MARK), string_character(ranges))


class Product:
    """Texts of all `wanted`, of none of `unwanted`: expressions of `marked_character`.

    Attributes:
        shortest, longest: characters; None: no text at all, or no longest one.
    """

    def __init__(self, wanted: Sequence[Expression], unwanted: Sequence[Expression], effort: Effort) -> None:
        self._automata = [build(each, None, effort) for each in (*wanted, *unwanted)]
        self._effort = effort
        self._num_wanted = len(wanted)
        self._steps: dict[Node, tuple[bool, bool, list[tuple[int, Node]]]] = {}
        self.first: Node = (0,) * len(self._automata)
        alive = self._merge_alike(self._alive())
        self.shortest, self.longest = self._lengths(alive)

    def step(self, node: Node) -> tuple[bool, bool, list[tuple[int, Node]]]:
        """(whether a character begins here, whether a text may end here, (bytes, node behind them))."""
        found = self._steps.get(node)
        if found is None:
            if len(self._steps) >= MAX_PRODUCT_STATES:
                raise _too_many()
            found = self._steps[node] = self._stepped(node)
        return found

    def _stepped(self, node: Node) -> tuple[bool, bool, list[tuple[int, Node]]]:
        states = [None if at == SINK else automaton[at] for automaton, at in zip(self._automata, node, strict=True)]
        begins = not states[0].bytes_to if states[0] else False
        wanted, unwanted = states[: self._num_wanted], states[self._num_wanted :]
        ends = all(each and each.is_final for each in wanted) and not any(each and each.is_final for each in unwanted)
        ways: list[tuple[int, Node]] = [(ALL_BYTES, ())]
        for place, state in enumerate(states):
            if begins and state is not None:
                behind = state.rules_to.get(MARK)
                state = None if behind is None else self._automata[place][behind]
            more = []
            for bits, targets in ways:
                left = bits
                for its_bits, target in state.bytes_to if state is not None else ():
                    if common := left & its_bits:
                        more.append((common, (*targets, target)))
                        left &= ~common
                if place >= self._num_wanted and left:
                    more.append((left, (*targets, SINK)))
            ways = more
        self._effort.spend(len(ways) * len(node))
        return begins, ends, ways

    def _alive(self) -> set[Node]:
        """Nodes from which a text can end."""
        sources: dict[Node, list[Node]] = {self.first: []}
        todo = [self.first]
        while todo:
            node = todo.pop()
            for _, target in self.step(node)[2]:
                if target not in sources:
                    sources[target] = []
                    todo.append(target)
                sources[target].append(node)
        alive, todo = set(), [node for node in sources if self.step(node)[1]]
        while todo:
            node = todo.pop()
            if node not in alive:
                alive.add(node)
                todo.extend(sources[node])
        return alive

    def _merge_alike(self, alive: set[Node]) -> set[Node]:
        """One node for all from which the same texts can follow (Moore's algorithm): a product has many such."""
        kinds: dict[Node, Hashable] = {node: (self.step(node)[:2], node in alive) for node in self._steps}
        number_of: dict[Node, int] = _numbered(kinds)
        for turn in itertools.count(1):
            if turn * len(self._steps) > MAX_MERGING:
                return alive  # as many nodes as there are: the bounds on states still hold
            kinds = {node: (number_of[node], self._ways_by(number_of, node, alive)) for node in self._steps}
            finer = _numbered(kinds)
            if len(set(finer.values())) == len(set(number_of.values())):
                break
            number_of = finer
        first_of: dict[int, Node] = {}
        for node, number in number_of.items():
            first_of.setdefault(number, node)
        self.first = first_of[number_of[self.first]]
        for node in first_of.values():
            begins, ends, _ = self._steps[node]
            ways = [(bits, first_of[number]) for number, bits in self._ways_by(number_of, node, alive)]
            self._steps[node] = begins, ends, ways
        return alive & set(first_of.values())

    def _ways_by(self, number_of: dict[Node, int], node: Node, alive: set[Node]) -> tuple[tuple[int, int], ...]:
        """(class of nodes, bytes that lead there), of those from which a text can end."""
        merged: dict[int, int] = {}
        for bits, target in self.step(node)[2]:
            if target in alive:
                merged[number_of[target]] = merged.get(number_of[target], 0) | bits
        return tuple(sorted(merged.items()))

    def _lengths(self, alive: set[Node]) -> tuple[int | None, int | None]:
        """The numbers of characters of the shortest and of the longest text."""
        if self.first not in alive:
            return None, None
        reached, count, shortest = {self.first}, 0, None
        levels = {self.first}
        while levels and shortest is None:
            if any(self.step(node)[1] for node in levels):
                shortest = count
            levels = self._behind_a_character(levels, alive) - reached
            reached |= levels
            count += 1
        return shortest, self._longest(alive)

    def _longest(self, alive: set[Node]) -> int | None:
        """None where a circle can be walked; else the longest way, in the order in which nodes depend on each other."""
        before = dict.fromkeys(alive, 0)
        for node in alive:
            for _, target in self.step(node)[2]:
                if target in alive:
                    before[target] += 1
        count = dict.fromkeys(alive, 0)
        ready = [node for node in alive if not before[node]]
        for node in ready:  # it grows
            begins, _, ways = self.step(node)
            for _, target in ways:
                if target in alive:
                    count[target] = max(count[target], count[node] + begins)
                    before[target] -= 1
                    if not before[target]:
                        ready.append(target)
        return max(count.values(), default=0) if len(ready) == len(alive) else None

    def _behind_a_character(self, nodes: set[Node], alive: set[Node]) -> set[Node]:
        found, todo, seen = set(), [*nodes], set(nodes)
        while todo:
            for _, target in self.step(todo.pop())[2]:
                if target in alive and self.step(target)[0]:
                    found.add(target)
                elif target in alive and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return found

    def states(self, low: int, high: int | None) -> list[State]:
        """The automaton of the texts with `low` to `high` characters; nothing but bytes is on its edges.

        Raises:
            GrammarError: it has more than `MAX_PRODUCT_STATES`.
        """
        edges = self._counted(low, high)
        sources: dict[tuple[Node, int], list[tuple[Node, int]]] = {}
        for place, ways in edges.items():
            for _, target in ways:
                sources.setdefault(target, []).append(place)
        alive, todo = set(), [place for place in edges if self.step(place[0])[1] and place[1] >= low]
        while todo:
            place = todo.pop()
            if place not in alive:
                alive.add(place)
                todo.extend(sources.get(place, ()))
        start = self.first, 0
        if start not in alive:
            return []
        numbers = {start: 0}
        for place in edges:
            if place in alive:
                numbers.setdefault(place, len(numbers))
        countdowns = _countdowns(numbers, low)
        states = [State() for _ in numbers]
        for (node, count), number in numbers.items():
            state = states[number]
            state.is_final = count >= low and self.step(node)[1]
            state.bytes_to = [(bits, numbers[target]) for bits, target in edges[node, count] if target in numbers]
            state.countdown = countdowns[node, count]
        return states

    def _counted(self, low: int, high: int | None) -> dict[tuple[Node, int], list[tuple[int, tuple[Node, int]]]]:
        found: dict[tuple[Node, int], list[tuple[int, tuple[Node, int]]]] = {}
        todo = [(self.first, 0)]
        seen = set(todo)
        while todo:
            node, count = todo.pop()
            begins, _, ways = self.step(node)
            behind = count + begins
            if high is None:
                behind = min(behind, low)
            elif behind > high:
                ways = []
            found[node, count] = [(bits, (target, behind)) for bits, target in ways]
            for target in {target for _, target in ways}:
                if (target, behind) not in seen:
                    seen.add((target, behind))
                    todo.append((target, behind))
            if len(seen) > MAX_PRODUCT_STATES:
                raise _too_many()
        return found


def _numbered(kinds: dict[Node, Hashable]) -> dict[Node, int]:
    numbers: dict[Hashable, int] = {}
    return {node: numbers.setdefault(kind, len(numbers)) for node, kind in kinds.items()}


def _countdowns(places: dict[tuple[Node, int], int], low: int) -> dict[tuple[Node, int], tuple[int, int, int]]:
    """For each state how many characters further everything is as it is here: those far from a change share a mask."""
    alive: dict[int, set[Node]] = {}
    for node, count in places:
        alive.setdefault(count, set()).add(node)
    run, left, of_count = 0, 0, {}
    for count in sorted(alive, reverse=True):
        same = alive.get(count + 1) == alive[count] and (count >= low) == (count + 1 >= low)
        run, left = (run, left + 1) if same else (next(_chains), 0)
        of_count[count] = run, left
    number_of: dict[tuple[Node, int], int] = {}
    found = {}
    for node, count in places:
        run, left = of_count[count]
        chain = number_of.setdefault((node, run), -next(_chains))  # below 0: not those of long repetitions
        found[node, count] = chain, 0, left
    return found


def _too_many() -> GrammarError:
    return GrammarError(
        f"pattern, format and lengths together need more than {MAX_PRODUCT_STATES} states: shorten the length"
    )
