"""A rule's body as an automaton: nondeterministic by Thompson's construction, then deterministic by sets of states.

An edge carries a set of bytes, or the name of another rule. Determinism is about both: from a state, a byte leads to
one state, and a rule leads to one state. What is left undecided (a byte, or first another rule?) is settled while a
text is read, by keeping several stacks (`pushdown.py`).

Upstream has no twin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from mini_vllm.structured_output.automata.expression import (
    ByteSet,
    Choice,
    Expression,
    GrammarError,
    Reference,
    Repeat,
    Sequence,
)

MAX_STATES = 200_000
"""Of one grammar. More is refused: compiling would take minutes."""

MAX_EFFORT = 3_000_000
"""What making all rules of a grammar deterministic may cost, in members of sets of states: some seconds. A small regex
can ask for a set for every subset of its states, as `(a|b)*a(a|b){30}` does."""


class Effort:
    """What is left of `MAX_EFFORT`, for all rules of a grammar together."""

    def __init__(self) -> None:
        self.left = MAX_EFFORT

    def spend(self, amount: int) -> None:
        """Raises GrammarError where it is used up."""
        self.left -= amount
        if self.left < 0:
            raise GrammarError("the grammar is too ambiguous: too many states are possible at once; shorten it")


@dataclass(slots=True)
class State:
    """A state of the finished automaton.

    bytes_to: disjoint (set of bytes, target). rules_to: rule -> target. is_final: the rule may end here.
    countdown: where the state stands in a long repetition: (its number, how many more times at least, and at most;
    -1: any number).
    """

    bytes_to: list[tuple[int, int]] = field(default_factory=list)
    rules_to: dict[str, int] = field(default_factory=dict)
    is_final: bool = False
    countdown: tuple[int, int, int] | None = None


class Fragments:
    """A nondeterministic automaton that grows: `epsilon[s]`, `byte_edges[s]`, `rule_edges[s]` leave state s. Most
    states have edges of one kind alone."""

    def __init__(self) -> None:
        self.num_states = 0
        self.epsilon: defaultdict[int, list[int]] = defaultdict(list)
        self.byte_edges: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self.rule_edges: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)

    def new_state(self) -> int:
        """Raises GrammarError where there are too many."""
        if self.num_states >= MAX_STATES:
            raise GrammarError(f"the grammar needs more than {MAX_STATES} states: shorten its repetitions")
        self.num_states += 1
        return self.num_states - 1

    def add(self, item: Expression, start: int) -> int:
        """Build `item` from `start` on; returns the state where it ends."""
        if isinstance(item, ByteSet):
            end = self.new_state()
            if item.bits:
                self.byte_edges[start].append((item.bits, end))
            return end
        if isinstance(item, Reference):
            end = self.new_state()
            self.rule_edges[start].append((item.name, end))
            return end
        if isinstance(item, Sequence):
            for each in item.items:
                start = self.add(each, start)
            return start
        if isinstance(item, Choice):
            return self._add_choice(item, start)
        return self._add_repeat(item, start)

    def _add_choice(self, item: Choice, start: int) -> int:
        """Bytes with which several alternatives begin are one path: nothing that `add` builds leads back into it."""
        end, head = self.new_state(), self.new_state()
        self.epsilon[start].append(head)
        paths: dict[tuple[int, Expression], int] = {}
        for each in item.items:
            parts = each.items if isinstance(each, Sequence) else (each,)
            at, count = head, 0
            while count < len(parts) and isinstance(parts[count], ByteSet):
                key = at, parts[count]
                if key not in paths:
                    paths[key] = self.add(parts[count], at)
                at, count = paths[key], count + 1
            self.epsilon[self.add(Sequence(parts[count:]), at)].append(end)
        return end

    def _add_repeat(self, item: Repeat, start: int) -> int:
        for _ in range(item.low):
            start = self.add(item.item, start)
        end = self.new_state()
        if item.high is None:
            loop = self.new_state()
            self.epsilon[start].append(loop)
            self.epsilon[self.add(item.item, loop)].append(loop)
            self.epsilon[loop].append(end)
            return end
        self.epsilon[start].append(end)
        for _ in range(item.high - item.low):
            start = self.add(item.item, start)
            self.epsilon[start].append(end)
        return end

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """`states`, and what can be reached from them without reading."""
        found = set(states)
        todo = [state for state in found if state in self.epsilon]
        while todo:
            for target in self.epsilon.get(todo.pop(), ()):
                if target not in found:
                    found.add(target)
                    todo.append(target)
        return frozenset(found)


def build(item: Expression, left_recursive_name: str | None = None, effort: Effort | None = None) -> list[State]:
    """The deterministic automaton of a rule's body; state 0 is the start.

    Args:
        left_recursive_name: the rule's own name, where its body may begin with itself (`a ::= a "x" | "y"`). The edge
            is taken away, and whoever has read a whole `a` may go on as if that edge had been walked.
        effort: what it may cost; a grammar's rules share one.
    """
    fragments = Fragments()
    start = fragments.new_state()
    end = fragments.add(item, start)
    if left_recursive_name is not None:
        start = _unroll_left_recursion(fragments, start, end, left_recursive_name)
    return _determinize(fragments, start, end, effort or Effort())


def _unroll_left_recursion(fragments: Fragments, start: int, end: int, name: str) -> int:
    """`a ::= a x | y` is `a ::= y x*`. Returns a new start, into which nothing leads back."""
    new_start = fragments.new_state()
    for state in fragments.closure([start]):
        fragments.byte_edges[new_start] += fragments.byte_edges.get(state, ())
        for rule, target in fragments.rule_edges.get(state, ()):
            if rule == name:
                fragments.epsilon[end].append(target)
            else:
                fragments.rule_edges[new_start].append((rule, target))
        if state == end:
            fragments.epsilon[new_start].append(end)
    return new_start


def _determinize(fragments: Fragments, start: int, end: int, effort: Effort) -> list[State]:
    """Subset construction. A state's byte edges are cut into disjoint sets first."""
    first = fragments.closure([start])
    numbers, todo, states = {first: 0}, [first], [State()]
    known: dict[tuple[int, ...], frozenset[int]] = {}

    def number_of(targets: tuple[int, ...]) -> int:
        closed = known.get(targets)
        if closed is None:
            closed = known[targets] = fragments.closure(targets)
        effort.spend(len(closed))
        if closed not in numbers:
            numbers[closed] = len(states)
            states.append(State())
            todo.append(closed)
        return numbers[closed]

    while todo:
        members = todo.pop()
        state = states[numbers[members]]
        state.is_final = end in members
        byte_edges = [edge for each in members for edge in fragments.byte_edges.get(each, ())]
        by_target: dict[int, int] = {}
        for bits, targets in disjoint(byte_edges):
            number = number_of(targets)
            by_target[number] = by_target.get(number, 0) | bits
        state.bytes_to = [(bits, number) for number, bits in by_target.items()]
        rules: dict[str, set[int]] = {}
        for each in members:
            for name, target in fragments.rule_edges.get(each, ()):
                rules.setdefault(name, set()).add(target)
        state.rules_to = {name: number_of(tuple(sorted(targets))) for name, targets in rules.items()}
    return states


def disjoint(edges: Iterable[tuple[int, int]]) -> list[tuple[int, tuple[int, ...]]]:
    """Cut overlapping sets of bytes: each byte then stands in one set, with all its targets.

    edges: (set of bytes, target). Returns (set of bytes, targets in ascending order).
    """
    by_target: dict[int, int] = {}
    for bits, target in edges:
        by_target[target] = by_target.get(target, 0) | bits
    if are_apart(by_target.values()):
        return [(bits, (target,)) for target, bits in by_target.items()]
    alike: dict[int, list[int]] = {}
    for target, bits in by_target.items():
        alike.setdefault(bits, []).append(target)
    if len(alike) > 32:
        return _disjoint_by_byte(alike)
    parts: list[tuple[int, frozenset[int]]] = []
    for bits, same in alike.items():
        cut = []
        for other, targets in parts:
            common = bits & other
            if not common:
                cut.append((other, targets))
                continue
            cut.append((common, targets.union(same)))
            if other != common:
                cut.append((other & ~common, targets))
            bits &= ~common
        if bits:
            cut.append((bits, frozenset(same)))
        parts = cut
    return [(bits, tuple(sorted(targets))) for bits, targets in parts]


def _disjoint_by_byte(alike: dict[int, list[int]]) -> list[tuple[int, tuple[int, ...]]]:
    """The same for many sets: bytes that stand in the same of them are one part. alike: set of bytes -> targets."""
    packed = np.frombuffer(b"".join(bits.to_bytes(32, "little") for bits in alike), np.uint8).reshape(-1, 32)
    columns = np.packbits(np.unpackbits(packed, axis=1, bitorder="little").T, axis=1)  # [256, sets / 8]
    parts: dict[bytes, int] = {}
    for byte, column in enumerate(columns):
        key = column.tobytes()
        parts[key] = parts.get(key, 0) | 1 << byte
    targets = list(alike.values())
    found = []
    for key, bits in parts.items():
        sets = np.flatnonzero(np.unpackbits(np.frombuffer(key, np.uint8), count=len(targets)))
        if len(sets):
            found.append((bits, tuple(sorted(target for each in sets for target in targets[each]))))
    return found


def are_apart(sets: Iterable[int]) -> bool:
    """Whether no byte stands in two of these sets, none of which is empty."""
    union = 0
    for bits in sets:
        if not bits or bits & union:
            return False
        union |= bits
    return True


def long_repeat(name: str, low: int, high: int | None, number: int) -> list[State]:
    """`name{low,high}` as a chain with one state a repetition, for repetitions too long to be unrolled.

    Each state carries its countdown: how far from the ends does not matter to the next token, so that states in the
    middle can share a mask.
    """
    last = low if high is None else high
    states = []
    for done in range(last + 1):
        left = -1 if high is None else high - done
        state = State(is_final=done >= low, countdown=(number, max(low - done, 0), left))
        if done < last:
            state.rules_to = {name: done + 1}
        states.append(state)
    if high is None:
        states[-1].rules_to = {name: last}
    return states
