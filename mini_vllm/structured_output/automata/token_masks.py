"""Which tokens may come next: a walk over the vocabulary's tree, with a grammar's configurations.

What a token may be depends mostly on the innermost rule alone: inside a string, nearly every token stays inside the
string, whatever stands around it. So a mask is made in two parts (Dong et al. 2024, "XGrammar", call them context
independent and context dependent):

    inner    the top state by itself, below it nothing: tokens that survive, and the nodes of the tree at which the rule
             can have ended. Made once for a state, whatever is below.
    outer    from those nodes on, with what is really below: a short walk, made once for a stack.

Upstream has no twin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from mini_vllm.structured_output.automata.budget import StepError
from mini_vllm.structured_output.automata.pushdown import DEAD, Configuration, Pushdown, Stack
from mini_vllm.structured_output.automata.token_trie import TokenTrie

CACHE_BYTES = 64 << 20
"""Of masks, for one grammar; the least recently used go first (upstream's bound for xgrammar: 512 MiB for all)."""
NODES_A_LOOK, LEVEL_LOOKS = 64, 16
"""Nodes of the tree that count as one look at a stack, and what each level of it counts beside them."""


class TokenMasks:
    """The masks of one grammar over one vocabulary, made when first asked for.

    num_walks counts those that were made, for tests and benchmarks.
    """

    def __init__(self, pushdown: Pushdown, trie: TokenTrie) -> None:
        self.pushdown, self.trie = pushdown, trie
        self.num_walks = 0
        self._generation = pushdown.generation
        self._inner: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._of: OrderedDict[object, np.ndarray] = OrderedDict()
        self._too_costly: dict[Configuration, str] = {}
        self._max_masks = max(64, CACHE_BYTES // (4 * trie.num_words))

    def mask(self, configuration: Configuration) -> np.ndarray:
        """int32[num_words], not to be written to: one bit a token. The end of the text is not a token here.

        Raises:
            GrammarError: it would cost more than a step may. Who asks again for the same is told so at once.
        """
        if self._generation != self.pushdown.generation:
            self._generation = self.pushdown.generation
            self._of.clear()
            self._inner.clear()
            self._too_costly.clear()
        found = self._of.get(configuration)
        if found is not None:
            self._of.move_to_end(configuration)
            return found
        if configuration in self._too_costly:
            raise StepError(self._too_costly[configuration])
        try:
            return self._keep(configuration, self._made(configuration))
        except StepError as error:
            self._too_costly[configuration] = str(error)
            raise

    @property
    def start(self) -> Configuration:
        """Before the first byte."""
        return self.pushdown.start

    def may_end(self, configuration: Configuration) -> bool:
        """Whether the text may end here."""
        return self.pushdown.done in configuration

    def after(self, configuration: Configuration, data: bytes) -> Configuration:
        """Behind some bytes; an empty one where they cannot stand here."""
        number = self.pushdown.number(configuration)
        for byte in data:
            number = self.pushdown.step(number, byte)
            if number == DEAD:
                break
        return self.pushdown.configurations[number]

    def bytes_next(self, configuration: Configuration) -> bytes:
        """Bytes that may come next: all of them, or the first two."""
        number = self.pushdown.number(configuration)
        if not self.pushdown.built[number]:
            self.pushdown.build_row(number)
        return bytes(np.flatnonzero(self.pushdown.table[number])[:2].tolist())

    def _made(self, configuration: Configuration) -> np.ndarray:
        pushdown = self.pushdown
        pushdown.budget.spend(len(configuration))
        stacks = {pushdown.representative(stack) for stack in configuration if stack is not pushdown.done}
        mask = np.zeros(self.trie.num_words, np.int32)
        for stack in stacks:
            mask |= self._mask_of_stack(stack)
        return mask

    def _keep(self, key: object, mask: np.ndarray) -> np.ndarray:
        self._of[key] = mask
        if len(self._of) > self._max_masks:
            self._of.popitem(last=False)
        return mask

    def _mask_of_stack(self, stack: Stack) -> np.ndarray:
        found = self._of.get(stack)
        if found is not None:
            self._of.move_to_end(stack)
            return found
        mask, escapes = self._inner_of(stack.state)
        if stack.parent is not None and len(escapes):
            below = self.pushdown.number(self.pushdown.closure(stack.parent))
            alive, _ = self._walk(escapes, below)
            mask = mask | self.trie.pack(alive)
        return self._keep(stack, mask)

    def _inner_of(self, state: int) -> tuple[np.ndarray, np.ndarray]:
        """Of a state with nothing below: its mask, and the nodes behind which something from below may follow."""
        found = self._inner.get(state)
        if found is None:
            # Alone, not with what can be entered or left from it before a byte: those stacks have masks of their own.
            alone = frozenset((self.pushdown.stack(state, None),))
            alive, ended = self._walk(np.zeros(1, np.int64), self.pushdown.number(alone))
            escapes = np.flatnonzero(ended)
            escapes = escapes[self.trie.num_children[escapes] > 0]
            found = self._inner[state] = self.trie.pack(alive), escapes
        return found

    def _walk(self, nodes: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
        """From `nodes` on, in configuration `start`: bool[nodes] of those reached, and of those where it may end."""
        alive, ended = np.zeros(self.trie.num_nodes, bool), np.zeros(self.trie.num_nodes, bool)
        for reached, at in self._levels(nodes, start):
            alive[reached] = True
            ended[reached[self.pushdown.ends[at]]] = True
        return alive, ended

    def _levels(self, nodes: np.ndarray, start: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(nodes that are reached, the configuration at each), a byte further with each pair."""
        self.num_walks += 1
        trie, pushdown = self.trie, self.pushdown
        at = np.full(len(nodes), start, np.int32)
        while len(nodes):
            self._build_rows(at)
            nodes, before = trie.children(nodes, at)
            at = pushdown.table.ravel()[before * 256 + trie.byte_of[nodes]]
            kept = at != DEAD
            nodes, at = nodes[kept], at[kept]
            yield nodes, at

    def _build_rows(self, at: np.ndarray) -> None:
        """Every configuration in `at` gets its row."""
        pushdown = self.pushdown
        pushdown.budget.spend(LEVEL_LOOKS + len(at) // NODES_A_LOOK)
        wanted = np.zeros(len(pushdown.configurations), bool)
        wanted[at] = True
        for number in np.flatnonzero(wanted & ~pushdown.built[: len(wanted)]):
            pushdown.build_row(int(number))
