"""Rules together: which of them can be finished, which begin with themselves, and one automaton for each.

Upstream has no twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from mini_vllm.structured_output.automata.expression import (
    ByteSet,
    Choice,
    Expression,
    GrammarError,
    Reference,
    Repeat,
    Sequence,
    can_be_empty,
    can_end,
    prune,
    references,
    size,
)
from mini_vllm.structured_output.automata.rule_automaton import MAX_STATES, Effort, State, build, long_repeat

UNROLL_LIMIT = 256
"""A repetition that would take more states than this becomes a chain of references (`long_repeat`)."""


@dataclass
class Grammar:
    """Rules by name, and where a text starts.

    Raises GrammarError from `compile` where a rule is missing, no text at all is allowed, or a rule begins with
    itself by way of others.
    """

    rules: dict[str, Expression] = field(default_factory=dict)
    root: str = "root"
    automata: dict[str, list[State]] = field(default_factory=dict)
    """Of rules that are automata from the start, with bytes on their edges alone; the body of such a rule says whether
    it may be empty."""
    effort: Effort = field(default_factory=Effort, repr=False)
    """What is left for making all of it deterministic."""
    known: dict[object, Reference] = field(default_factory=dict, repr=False)
    """Rules by what they were made of."""
    unique: dict[str, str] = field(default_factory=dict)
    """Rules of arrays whose items all differ ("array"), and of such items ("item"): see `unique_items.py`."""

    def shared(self, wish: str, body: Expression) -> Reference:
        """As `add`, but equal bodies have one rule: one automaton, and one set of masks."""
        if body not in self.known:
            self.known[body] = self.add(wish, body)
        return self.known[body]

    def add_automaton(self, wish: str, states: list[State]) -> Reference:
        """A rule of ready states, of which 0 is the start. Raises GrammarError where all together are too many."""
        if sum(map(len, self.automata.values())) + len(states) > MAX_STATES:
            raise GrammarError(f"the grammar needs more than {MAX_STATES} states: shorten its lengths")
        found = self.add(wish, Repeat(ByteSet(1), 0 if states[0].is_final else 1, 1))
        self.automata[found.name] = states
        return found

    def add(self, wish: str, body: Expression) -> Reference:
        """Add a rule under this name or, where that is taken, the name with a number behind it."""
        name, number = wish, 0
        while name in self.rules:
            number += 1
            name = f"{wish}_{number}"
        self.rules[name] = body
        return Reference(name)

    def compile(self) -> CompiledGrammar:
        """Automata of all rules that the root needs, one behind the other in one list of states."""
        return _Compiler(self).compile()


@dataclass
class CompiledGrammar:
    """states: of all rules; start_of: rule -> its first state. States know their targets by their place in `states`.

    unique: as in `Grammar`. unique_states: the same by the states of such rules.
    """

    states: list[State]
    start_of: dict[str, int]
    root: str
    unique: dict[str, str] = field(default_factory=dict)
    unique_states: dict[int, str] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Where a text starts."""
        return self.start_of[self.root]


class NoTextError(GrammarError):
    """A grammar that allows no text at all."""


class _Compiler:
    def __init__(self, grammar: Grammar) -> None:
        self.root, self.effort, self.unique = grammar.root, grammar.effort, grammar.unique
        self.rules = dict(grammar.rules)
        self.chains: dict[str, list[State]] = {
            name: [replace(s, bytes_to=list(s.bytes_to)) for s in states] for name, states in grammar.automata.items()
        }
        self._chain_of: dict[Expression, str] = {}
        self._names: dict[str, tuple[Expression, tuple[str, ...]]] = {}

    def compile(self) -> CompiledGrammar:
        self._check_names()
        names = self._reachable()
        productive = self._fixpoint(can_end)
        if self.root not in productive:
            raise NoTextError("the grammar allows no text at all: no derivation ever ends")
        for name in names:
            if not productive.issuperset(self._names_in(name)):
                self.rules[name] = prune(self.rules[name], productive)
        nullable = self._fixpoint(can_be_empty)
        for name in self._reachable():
            self.rules[name] = self._shorten(self.rules[name], nullable)
        automata: dict[str, list[State]] = {}
        for name in self._reachable():
            recursive = name if name in self._names_in(name) else None
            automata[name] = trim(self.chains.get(name) or build(self.rules[name], recursive, self.effort))
        _refuse_left_recursion(automata, {n for n in automata if automata[n][0].is_final} | nullable)
        return _joined(automata, self.root, self.unique)

    def _check_names(self) -> None:
        if self.root not in self.rules:
            raise GrammarError(f"the grammar has no rule {self.root!r}, where a text starts")
        for name in self.rules:
            missing = next((each for each in self._names_in(name) if each not in self.rules), None)
            if missing is not None:
                raise GrammarError(f"rule {name!r} refers to {missing!r}, which is not defined")

    def _names_in(self, rule: str) -> tuple[str, ...]:
        """The rules that a rule refers to, each once, in the order in which its body names them."""
        body, (known, names) = self.rules[rule], self._names.get(rule, (None, ()))
        if known is not body:
            names = tuple(dict.fromkeys(references(body)))
            self._names[rule] = body, names
        return names

    def _reachable(self) -> list[str]:
        found, todo = {self.root: None}, [self.root]
        while todo:
            for name in self._names_in(todo.pop()):
                if name not in found:
                    found[name] = None
                    todo.append(name)
        return list(found)

    def _fixpoint(self, holds: Callable[[Expression, set[str]], bool]) -> set[str]:
        """The smallest set of rules of which `holds(body, set)` is true."""
        users: dict[str, list[str]] = {}
        for name in self.rules:
            for each in self._names_in(name):
                users.setdefault(each, []).append(name)
        known: set[str] = set()
        todo: Iterable[str] = self.rules
        while todo:  # after the first round, those that have learned something new
            more = {name for name in todo if name not in known and holds(self.rules[name], known)}
            known |= more
            todo = {user for name in more for user in users.get(name, ())}
        return known

    def _shorten(self, item: Expression, nullable: set[str]) -> Expression:
        """`item` with its long repetitions as references to chains."""
        if isinstance(item, Sequence):
            return Sequence(tuple(self._shorten(each, nullable) for each in item.items))
        if isinstance(item, Choice):
            return Choice(tuple(self._shorten(each, nullable) for each in item.items))
        if not isinstance(item, Repeat):
            return item
        inner = self._shorten(item.item, nullable)
        times = item.low if item.high is None else item.high
        if times <= 1 or times * size(inner) <= UNROLL_LIMIT or can_be_empty(inner, nullable):
            return Repeat(inner, item.low, item.high)
        return self._chain(inner, item.low, item.high)

    def _chain(self, inner: Expression, low: int, high: int | None) -> Reference:
        if not isinstance(inner, Reference):
            if inner not in self._chain_of:
                self._chain_of[inner] = name = f"repeated_{len(self._chain_of)}"
                self.rules[name] = inner
            inner = Reference(self._chain_of[inner])
        if sum(map(len, self.chains.values())) + (low if high is None else high) > MAX_STATES:
            raise GrammarError(f"the grammar needs more than {MAX_STATES} states: shorten its repetitions")
        name = f"chain_{len(self.chains)}"
        self.rules[name] = inner  # what it refers to; its automaton is made by hand
        self.chains[name] = long_repeat(inner.name, low, high, len(self.chains))
        return Reference(name)


def trim(states: list[State]) -> list[State]:
    """Without the states from which the rule cannot end, and renumbered; state 0 stays."""
    sources: list[list[int]] = [[] for _ in states]
    for number, state in enumerate(states):
        for target in [*(target for _, target in state.bytes_to), *state.rules_to.values()]:
            sources[target].append(number)
    alive, todo = set(), [number for number, state in enumerate(states) if state.is_final]
    while todo:
        number = todo.pop()
        if number not in alive:
            alive.add(number)
            todo.extend(sources[number])
    alive.add(0)
    new = {number: place for place, number in enumerate(sorted(alive))}
    for number in alive:
        state = states[number]
        state.bytes_to = [(bits, new[target]) for bits, target in state.bytes_to if target in new]
        state.rules_to = {name: new[target] for name, target in state.rules_to.items() if target in new}
    return [states[number] for number in sorted(alive)]


def _refuse_left_recursion(automata: dict[str, list[State]], nullable: set[str]) -> None:
    """Raises GrammarError where a rule can begin with itself: reading would push for ever."""
    begins = {name: _first_rules(states, nullable) for name, states in automata.items()}
    done: set[str] = set()
    for root in begins:
        path: dict[str, None] = {}
        todo: list[tuple[str, bool]] = [(root, False)]
        while todo:
            name, leaving = todo.pop()
            if leaving:
                done.add(path.popitem()[0])
            elif name in path:
                names = list(path)
                circle = " -> ".join([*names[names.index(name) :], name])
                raise GrammarError(
                    f"left recursion by way of other rules ({circle}) is not supported: write it as a repetition"
                )
            elif name not in done:
                path[name] = None
                todo.append((name, True))
                todo.extend((each, False) for each in begins[name])


def _first_rules(states: list[State], nullable: set[str]) -> set[str]:
    """Rules that can be the first thing in this one, before any byte has been read."""
    found, todo, seen = set(), [0], {0}
    while todo:
        for name, target in states[todo.pop()].rules_to.items():
            found.add(name)
            if name in nullable and target not in seen:
                seen.add(target)
                todo.append(target)
    return found


def _joined(automata: dict[str, list[State]], root: str, unique: dict[str, str]) -> CompiledGrammar:
    start_of: dict[str, int] = {}
    unique_states: dict[int, str] = {}
    joined: list[State] = []
    for name, states in automata.items():
        offset = start_of[name] = len(joined)
        for state in states:
            state.bytes_to = [(bits, target + offset) for bits, target in state.bytes_to]
            state.rules_to = {rule: target + offset for rule, target in state.rules_to.items()}
        joined += states
        if name in unique:
            unique_states.update(dict.fromkeys(range(offset, len(joined)), unique[name]))
    return CompiledGrammar(
        joined, start_of, root, {name: unique[name] for name in unique if name in start_of}, unique_states
    )
