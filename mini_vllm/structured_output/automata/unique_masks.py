"""Masks where some arrays have items that all differ.

Most tokens do not depend on what has been written: those that stay inside of an item, those that end one which no
earlier one begins like. They are found once for a stack, in three walks over the vocabulary's tree:

    in the item that is being written | behind its end | in the items that begin there

What may depend on it is tried, reading by reading (`unique_items.py`): tokens by which an item may become an earlier
one, or can only become such, and those that hold an item from its first byte to its end. Upstream has no twin.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.structured_output.automata.pushdown import DEAD, Configuration, Stack
from mini_vllm.structured_output.automata.token_masks import TokenMasks
from mini_vllm.structured_output.automata.token_trie import TokenTrie
from mini_vllm.structured_output.automata.unique_items import MANY, Memory, UniqueItemPushdown


@dataclass(frozen=True)
class Reach:
    """The tokens behind a stack: `sure` (a mask) are allowed, whatever has been written; `doubtful` are to be tried,
    and those of `few` too where an array has as many items as the number beside them."""

    sure: np.ndarray
    doubtful: list[int]
    few: list[tuple[int, int]]


class UniqueItemMasks(TokenMasks):
    """Masks where some arrays have items that all differ. A configuration is a set of `Place`s here."""

    pushdown: UniqueItemPushdown

    def __init__(self, pushdown: UniqueItemPushdown, trie: TokenTrie) -> None:
        super().__init__(pushdown, trie)
        self._reaches: dict[Stack, Reach] = {}
        self._reach_generation = pushdown.generation
        self._tokens, self._ids = trie.in_order

    @property
    def start(self) -> Any:
        """See `TokenMasks.start`."""
        return self.pushdown.first_places()

    def may_end(self, configuration: Any) -> bool:
        """See `TokenMasks.may_end`."""
        return (self.pushdown.done, None) in configuration

    def after(self, configuration: Any, data: bytes) -> Any:
        """See `TokenMasks.after`."""
        for byte in data:
            configuration = self.pushdown.read(configuration, byte)
            if not configuration:
                break
        return configuration

    def bytes_next(self, configuration: Any) -> bytes:
        """See `TokenMasks.bytes_next`."""
        edges = (self.pushdown.states[stack.state].bytes_to for stack, _ in configuration if stack.state >= 0)
        bits, found = 0, bytearray()
        for its, _ in itertools.chain.from_iterable(edges):
            bits |= its
        for byte in range(256):
            if bits >> byte & 1 and self.pushdown.read(configuration, byte):
                found.append(byte)
                if len(found) == 2:
                    break
        return bytes(found)

    def _made(self, configuration: Configuration) -> np.ndarray:
        places: Any = configuration
        bits = np.zeros(32 * self.trie.num_words, bool)
        doubtful: set[int] = set()
        for stack, memory in places:
            if stack is self.pushdown.done:
                continue
            reach = self._reach(stack)
            bits |= np.unpackbits(reach.sure.view(np.uint8), bitorder="little").astype(bool)
            doubtful.update(reach.doubtful)
            most = len(memory.items if memory is not None else ()) + self.trie.longest
            doubtful.update(token for token, texts in reach.few if texts <= most)
            if memory is not None and memory.begun is not None:
                doubtful.update(self._like_earlier_ones(stack, memory))
        tried: dict[bytes, Any] = {b"": places}
        for token in sorted(doubtful, key=self.trie.tokens.__getitem__):
            bits[token] = bool(self._try(self.trie.tokens[token], tried))
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _try(self, data: bytes, tried: dict[bytes, Any]) -> Any:
        """What is behind a token; its beginnings are read once for all tokens."""
        size = next(size for size in range(len(data), -1, -1) if data[:size] in tried)
        places = tried[data[:size]]
        for end in range(size + 1, len(data) + 1):
            places = self.pushdown.read(places, data[end - 1]) if places else places
            tried[data[:end]] = places
        return places

    def _like_earlier_ones(self, stack: Stack, memory: Memory) -> Iterator[int]:
        """Tokens by which an item may become one that is there, or one that can only become such."""
        pushdown, size = self.pushdown, len(memory.begun or b"")
        start = pushdown.number(frozenset((pushdown.item_part(stack),)))
        for each in memory.like(memory.begun or b""):
            rest, number = each[size:], start
            yield from self._beginning_with(rest)
            for end in range(1, len(rest)):
                low = bisect_left(self._tokens, rest[:end])
                number = pushdown.step(number, rest[end - 1])
                if number == DEAD or low == len(self._tokens) or not self._tokens[low].startswith(rest[:end]):
                    break
                if pushdown.num_texts(number) <= len(memory.items):
                    while low < len(self._tokens) and self._tokens[low] == rest[:end]:
                        yield self._ids[low]
                        low += 1

    def _beginning_with(self, text: bytes) -> Iterator[int]:
        place = bisect_left(self._tokens, text)
        while place < len(self._tokens) and self._tokens[place].startswith(text):
            yield self._ids[place]
            place += 1

    def _reach(self, stack: Stack) -> Reach:
        if self._reach_generation != self.pushdown.generation:
            self._reaches.clear()
            self._reach_generation = self.pushdown.generation
        stack = self.pushdown.representative(stack)
        if stack not in self._reaches:
            self._reaches[stack] = self._walked(stack)
        return self._reaches[stack]

    def _walked(self, stack: Stack) -> Reach:
        """Three walks: inside the item that a stack is in, then behind it, then in the items that begin there."""
        pushdown, trie = self.pushdown, self.trie
        alive, doubtful = np.zeros(trie.num_nodes, bool), np.zeros(trie.num_nodes, bool)
        texts = np.full(trie.num_nodes, MANY)
        alone = pushdown.number(frozenset((pushdown.item_part(stack),)))
        ended, gates = self._walk_to_gates(np.zeros(1, np.int64), alone, alive)
        below = pushdown.below_item(stack)
        if below is not None:
            _, behind = self._walk_to_gates(ended, pushdown.number(pushdown.closure(below)), alive)
            gates += behind
        for name, nodes in gates:
            ways_out = []
            for reached, at in self._levels(nodes, pushdown.item_start(name)):
                alive[reached] = True
                for number, here in _by_number(reached, at):
                    texts[here] = np.minimum(texts[here], pushdown.num_texts(number))
                    if pushdown.ends[number]:
                        ways_out.append(here)
            self._mark_below(ways_out, doubtful)
        nodes_of = trie.node_of_token
        known = np.flatnonzero(nodes_of > 0)
        few = known[alive[nodes_of[known]] & (texts[nodes_of[known]] < MANY)]
        return Reach(
            trie.pack(alive & ~doubtful),
            known[doubtful[nodes_of[known]]].tolist(),
            list(zip(few.tolist(), texts[nodes_of[few]].tolist(), strict=True)),
        )

    def _walk_to_gates(
        self, nodes: np.ndarray, start: int, alive: np.ndarray
    ) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
        """Marks what is reached as alive. Returns the nodes where it may end, and those where items may begin."""
        ended = [np.zeros(0, np.int64)]
        gates = [(name, nodes) for name in self.pushdown.gates(start)]
        for reached, at in self._levels(nodes, start):
            alive[reached] = True
            for number, here in _by_number(reached, at):
                if self.pushdown.ends[number]:
                    ended.append(here)
                gates += [(name, here) for name in self.pushdown.gates(number)]
        return np.concatenate(ended), gates

    def _mark_below(self, nodes: Iterable[np.ndarray], marks: np.ndarray) -> None:
        """These nodes of the vocabulary's tree, and all below them."""
        for each in nodes:
            while len(each):
                marks[each] = True
                each, _ = self.trie.children(each, each)


def _by_number(nodes: np.ndarray, at: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Nodes by the configuration that stands at them."""
    for number in np.unique(at).tolist():
        yield number, nodes[at == number]
