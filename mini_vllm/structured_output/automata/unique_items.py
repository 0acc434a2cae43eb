"""Arrays whose items all differ (`uniqueItems`, which pydantic makes of a set): a grammar with a memory.

No automaton of reasonable size knows which items have been written. So the automata say what an item is, and beside
each reading of the text stands what it remembers: the items of its array so far, and what of the next one has been
written. The schema gives each value one text (`json_unique.py`), so that two values are equal where their texts are.

    a byte     every reading goes on; an item that ends with the text of an earlier one is no reading any more, nor is
               one that could only become such: it has as many texts before it as earlier items begin like it
    a mask     most tokens need none of it; the few that do are tried, byte by byte (`unique_masks.py`)

A place among tokens is a frozenset of such readings, so that rolling back, drafts and forced text need no word about
any of it. Upstream has no twin: xgrammar passes over `uniqueItems`, llguidance refuses it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mini_vllm.structured_output.automata.grammar import CompiledGrammar
from mini_vllm.structured_output.automata.pushdown import DEAD, Pushdown, Stack
from mini_vllm.structured_output.automata.rule_automaton import State

MOST_ITEMS = 1000
"""Of one array that are remembered; then it is closed."""
MANY = 2 * MOST_ITEMS
"""Texts are counted up to here."""
PLACE_LOOKS = 4
"""What a reading costs with each byte, in looks at a stack."""


class Memory(NamedTuple):
    """Of an array that is being written: its items, in the order of their bytes, and what of the next one stands there
    (None: none has been begun)."""

    items: tuple[bytes, ...] = ()
    begun: bytes | None = None

    def like(self, text: bytes) -> tuple[bytes, ...]:
        """The items that begin with a text."""
        first = bisect_left(self.items, text)
        last = first
        while last < len(self.items) and self.items[last].startswith(text):
            last += 1
        return self.items[first:last]

    def ended(self) -> Memory | None:
        """With the item that has been begun; None where there is one like it."""
        assert self.begun is not None
        place = bisect_left(self.items, self.begun)
        if self.items[place : place + 1] == (self.begun,):
            return None
        return Memory((*self.items[:place], self.begun, *self.items[place:]))


Place = tuple[Stack, Memory | None]
Places = frozenset[Place]


class UniqueItemPushdown(Pushdown):
    """A pushdown that stops where such an item begins, at a *gate*: a stack for each rule of items that reads nothing.
    An item is walked with nothing below it, so that its end is seen."""

    def __init__(self, grammar: CompiledGrammar, countdown_reach: int) -> None:
        self.roles, self.unique_states, self.num_states = grammar.unique, grammar.unique_states, len(grammar.states)
        self.item_rules = [name for name, role in grammar.unique.items() if role == "item"]
        super().__init__(
            replace(grammar, states=[*grammar.states, *(State() for _ in self.item_rules)]), countdown_reach
        )

    def entered(self, name: str, below: Stack | None) -> Stack:
        """See `Pushdown.entered`."""
        if self.roles.get(name) != "item":
            return super().entered(name, below)
        gate = self.stack(self.num_states + self.item_rules.index(name), None)
        gate.closure = frozenset((gate,))
        return gate

    def gates(self, number: int) -> list[str]:
        """Rules of items that may begin in a configuration."""
        tops = (stack.state - self.num_states for stack in self.configurations[number])
        return [self.item_rules[top] for top in tops if top >= 0]

    def item_start(self, name: str) -> int:
        """The configuration before an item, with nothing below."""
        return self.number(self.closure(self.stack(self.start_of[name], None)))

    def first_places(self) -> Places:
        """Before the first byte."""
        return frozenset(self.close([(self.stack(self._start, None), None)]))

    def close(self, todo: list[Place]) -> set[Place]:
        """As `closure`, for readings: without gates, and with what they remember."""
        seen, waiting = set(todo), set()
        while todo:
            stack, memory = place = todo.pop()
            if stack is self.done:
                waiting.add(place)
                continue
            state = self.states[stack.state]
            self.budget.spend(PLACE_LOOKS + 2 * len(state.rules_to))
            for follower in itertools.chain(self._entering(stack, memory), self._leaving(stack, memory)):
                if follower not in seen:
                    seen.add(follower)
                    todo.append(follower)
            if state.bytes_to:
                waiting.add(place)
        return waiting

    def _entering(self, stack: Stack, memory: Memory | None) -> Iterator[Place]:
        for name, target in self.states[stack.state].rules_to.items():
            after, role = self.states[target], self.roles.get(name)
            is_last = after.is_final and not after.bytes_to and not after.rules_to
            is_last = is_last and stack.state not in self.unique_states  # whose end has a meaning
            below = stack.parent if is_last else self.stack(target, stack.parent)
            inside = memory
            if role == "array":
                inside = Memory()
            elif role == "item":
                assert memory is not None
                inside = Memory(memory.items, b"")
            yield self.stack(self.start_of[name], below), inside

    def _leaving(self, stack: Stack, memory: Memory | None) -> Iterator[Place]:
        if not self.states[stack.state].is_final:
            return
        role = self.unique_states.get(stack.state)
        if role == "array":
            memory = None
        elif role == "item":
            assert memory is not None
            memory = memory.ended()
            if memory is None:
                return
        yield (self.done, None) if stack.parent is None else (stack.parent, memory)

    def read(self, places: Places, byte: int) -> Places:
        """The readings behind a byte."""
        todo = []
        for stack, memory in places:
            if memory is not None and memory.begun is not None:
                memory = Memory(memory.items, memory.begun + bytes((byte,)))
            bits = self.states[stack.state].bytes_to if stack is not self.done else ()
            todo += [(self.stack(target, stack.parent), memory) for its, target in bits if its >> byte & 1]
        return self._with_a_future(self.close(todo)) if todo else frozenset()

    def _with_a_future(self, places: set[Place]) -> Places:
        """Without the items that can only become one that is there."""
        begun: dict[Memory, list[Stack]] = {}
        for stack, memory in places:
            if memory is not None and memory.begun:
                begun.setdefault(memory, []).append(stack)
        for memory, stacks in begun.items():
            assert memory.begun is not None
            taken = sum(len(each) > len(memory.begun) for each in memory.like(memory.begun))
            if taken and self.num_texts(self.number(frozenset(map(self.item_part, stacks)))) <= taken:
                places = {place for place in places if place[1] != memory}
        return frozenset(places)

    def item_part(self, stack: Stack) -> Stack:
        """A stack down to the item that it is in, and nothing below; itself where it is in none."""
        states: list[int] = []
        each: Stack | None = stack
        while each is not None:
            states.append(each.state)
            if self.unique_states.get(each.state) == "item":
                found: Stack | None = None
                for state in reversed(states):
                    found = self.stack(state, found)
                assert found is not None
                return found
            each = each.parent
        return stack

    def below_item(self, stack: Stack) -> Stack | None:
        """What stands below the item that a stack is in; None where it is in none."""
        each: Stack | None = stack
        while each is not None and self.unique_states.get(each.state) != "item":
            each = each.parent
        return None if each is None else each.parent

    def clear(self) -> None:
        """See `Pushdown.clear`."""
        self._num_texts: dict[int, int] = {}
        super().clear()

    def num_texts(self, number: int) -> int:
        """How many texts can follow, up to an end; `MANY`: so many, or more."""
        if number not in self._num_texts:
            self._num_texts[number] = num_texts(self, number)
        return self._num_texts[number]


def num_texts(pushdown: Pushdown, number: int) -> int:
    """How many texts can follow a configuration, up to an end; `MANY`: so many, or more. Every configuration can come
    to an end, so that two beginnings of one length are two texts."""
    shorter, ways = 0, {number: 1}
    while ways:
        if shorter + sum(ways.values()) >= MANY:
            return MANY
        further: dict[int, int] = {}
        for at, count in ways.items():
            shorter += count if pushdown.ends[at] else 0
            if not pushdown.built[at]:
                pushdown.build_row(at)
            pushdown.budget.spend(PLACE_LOOKS)
            row = pushdown.table[at]
            targets, times = np.unique(row[row != DEAD], return_counts=True)
            for target, each in zip(targets.tolist(), times.tolist(), strict=True):
                further[target] = further.get(target, 0) + count * each
        ways = further
    return shorter
