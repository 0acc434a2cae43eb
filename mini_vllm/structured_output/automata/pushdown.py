"""Where a text can stand in a grammar: a set of stacks, and the set that a byte makes of it.

A stack has the state of the innermost rule on top, and below it the states in which the outer rules go on. Where a
grammar leaves something open, several stacks live at once; a byte keeps those that can read it. Such a set is a
*configuration*. Configurations are numbered as they are met, each with a row of 256 targets, so that a walk over a
vocabulary is a lookup in a table: the deterministic automaton is made lazily, out of the part that texts really visit.

    stacks -> closure (push rules, pop finished ones, until a byte is due) -> row of 256 targets, when first needed

Upstream has no twin; xgrammar keeps the same thing as Earley states.
"""

from __future__ import annotations

import functools

import numpy as np

from mini_vllm.structured_output.automata.budget import Budget
from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.automata.grammar import CompiledGrammar
from mini_vllm.structured_output.automata.rule_automaton import State, disjoint

DEAD = 0
"""Number of the empty configuration: nothing can follow."""
MAX_STACKS = 1024
MAX_CONFIGURATIONS = 16_384
"""Kept before the table starts anew: 16 MiB of rows."""
MAX_KEPT_STACKS = 1_000_000
"""In all configurations together, before the table starts anew."""
FIRST_ROWS = 64
ROW_LOOKS, PART_LOOKS = 16, 4
"""What a new row costs, and each set of bytes in it, in looks at a stack."""


class Stack:
    """The top state, and the stack below it; None: the end of the text. Equal stacks are one object."""

    __slots__ = ("closure", "parent", "representative", "state")

    def __init__(self, state: int, parent: Stack | None) -> None:
        self.state, self.parent = state, parent
        self.closure: frozenset[Stack] | None = None
        self.representative: Stack | None = None


Configuration = frozenset[Stack]


class Pushdown:
    """The lazily made automaton of one grammar.

    Attributes:
        done: the stack of a text that may end here.
        table: int32[configurations, 256], rows valid where `built`. ends: bool, whether a text may end there.
        generation: goes up whenever the table is emptied; numbers from before mean nothing then.
        start: the configuration before the first byte. budget: what the step that is under way may cost.
    """

    def __init__(self, grammar: CompiledGrammar, countdown_reach: int) -> None:
        """countdown_reach: bytes of the longest token; two places of a long repetition that are both farther from its
        ends cannot be told apart by one token."""
        self.states: list[State] = grammar.states
        self.start_of = grammar.start_of
        self._alias = _aliases(self.states, countdown_reach)
        self.generation, self.budget = 0, Budget()
        self._start = grammar.start
        self.done = Stack(-1, None)
        self.done.closure = frozenset((self.done,))
        self.done.representative = self.done
        self.clear()

    def clear(self) -> None:
        """Forget every configuration; who holds one asks for its number again."""
        self.generation += 1
        self._stacks: dict[tuple[int, Stack | None], Stack] = {}
        self.configurations: list[Configuration] = [frozenset()]
        self._numbers: dict[Configuration, int] = {self.configurations[0]: DEAD}
        self.table = np.zeros((FIRST_ROWS, 256), np.int32)
        self.built = np.zeros(FIRST_ROWS, bool)
        self.ends = np.zeros(FIRST_ROWS, bool)
        self.built[DEAD] = True
        self._num_kept = 0
        self.start = self.closure(self.stack(self._start, None))

    def stack(self, state: int, parent: Stack | None) -> Stack:
        """The one object for this stack."""
        key = state, parent
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = Stack(state, parent)
        return found

    def number(self, configuration: Configuration) -> int:
        """The configuration's row in `table`.

        Raises:
            GrammarError: too many stacks at once; the grammar is too ambiguous.
        """
        found = self._numbers.get(configuration)
        if found is not None:
            return found
        if len(configuration) > MAX_STACKS:
            raise GrammarError(f"the grammar is too ambiguous: more than {MAX_STACKS} readings of the text so far")
        found = len(self.configurations)
        self._num_kept += len(configuration)
        self.budget.spend(len(configuration))
        self.configurations.append(configuration)
        self._numbers[configuration] = found
        if found == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
            self.built, self.ends = (np.concatenate([a, np.zeros_like(a)]) for a in (self.built, self.ends))
        self.ends[found] = self.done in configuration
        return found

    @property
    def is_full(self) -> bool:
        """True when it is time to `clear`, which is the caller's to do between two tokens."""
        return len(self.configurations) > MAX_CONFIGURATIONS or self._num_kept > MAX_KEPT_STACKS

    def closure(self, stack: Stack) -> Configuration:
        """The stacks that wait for a byte (or for the end) once rules have been entered and finished ones left."""
        if stack.closure is None:
            stack.closure = self._close([stack])
        return stack.closure

    def _close(self, todo: list[Stack]) -> Configuration:
        seen, waiting = set(todo), set()
        spend = self.budget.spend
        while todo:
            stack = todo.pop()
            if stack is self.done:
                waiting.add(stack)
                continue
            if stack.closure is not None:
                spend(len(stack.closure))
                waiting |= stack.closure
                continue
            spend(2 + 2 * len(self.states[stack.state].rules_to))
            for follower in self._without_reading(stack):
                if follower not in seen:
                    seen.add(follower)
                    todo.append(follower)
            if self.states[stack.state].bytes_to:
                waiting.add(stack)
            if len(seen) > 8 * MAX_STACKS:
                raise GrammarError("the grammar is too ambiguous: too many readings of the text so far")
        return frozenset(waiting)

    def _without_reading(self, stack: Stack) -> list[Stack]:
        """Enter the rules that may come next; leave this one where it may end."""
        state = self.states[stack.state]
        followers = []
        for name, target in state.rules_to.items():
            after = self.states[target]
            is_last = after.is_final and not after.bytes_to and not after.rules_to
            below = stack.parent if is_last else self.stack(target, stack.parent)  # nothing to come back for
            followers.append(self.entered(name, below))
        if state.is_final:
            followers.append(self.done if stack.parent is None else stack.parent)
        return followers

    def entered(self, name: str, below: Stack | None) -> Stack:
        """The stack of one who has entered a rule."""
        return self.stack(self.start_of[name], below)

    def build_row(self, number: int) -> None:
        """Fill in where each byte leads from this configuration."""
        spend, edges = self.budget.spend, []
        spend(ROW_LOOKS + len(self.configurations[number]))
        for stack in self.configurations[number]:
            if stack is not self.done:
                edges += [(bits, (target, stack.parent)) for bits, target in self.states[stack.state].bytes_to]
        spend(len(edges))
        row = np.zeros(256, np.int32)
        if len(edges) == 1 or _one_stack(self.configurations[number], self.done):
            for bits, (target, parent) in edges:
                row[members(bits)] = self.number(self.closure(self.stack(target, parent)))
        else:
            stacks = [self.stack(*target) for _, target in edges]
            for bits, places in disjoint((bits, place) for place, (bits, _) in enumerate(edges)):
                reached: set[Stack] = set()
                spend(PART_LOOKS)
                for place in places:
                    closure = self.closure(stacks[place])
                    spend(len(closure))
                    reached |= closure
                row[members(bits)] = self.number(frozenset(reached))
        self.table[number] = row
        self.built[number] = True

    def step(self, number: int, byte: int) -> int:
        """The configuration after one byte; DEAD where it cannot stand here."""
        if not self.built[number]:
            self.build_row(number)
        return int(self.table[number, byte])

    def representative(self, stack: Stack) -> Stack:
        """A stack that allows the same tokens: long repetitions are not counted beyond a token's reach."""
        todo: list[Stack] = []
        each: Stack | None = stack
        while each is not None and each.representative is None:
            todo.append(each)
            each = each.parent
        for each in reversed(todo):
            below = each.parent.representative if each.parent is not None else None
            each.representative = found = self.stack(self._alias.get(each.state, each.state), below)
            found.representative = found
        assert stack.representative is not None
        return stack.representative


@functools.lru_cache(maxsize=4096)
def members(bits: int) -> np.ndarray:
    """The bytes of a set, ascending."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(bits.to_bytes(32, "little"), np.uint8), bitorder="little"))


def _one_stack(configuration: Configuration, done: Stack) -> bool:
    return len(configuration) - (done in configuration) == 1


def _aliases(states: list[State], reach: int) -> dict[int, int]:
    """Places of long repetitions -> the first place that one token cannot tell from it."""
    alias: dict[int, int] = {}
    first: dict[tuple[int, int, int], int] = {}
    for number, state in enumerate(states):
        if state.countdown is not None:
            chain, low, high = state.countdown
            key = chain, min(low, reach + 1), min(high, reach + 1)
            alias[number] = first.setdefault(key, number)
    return alias
