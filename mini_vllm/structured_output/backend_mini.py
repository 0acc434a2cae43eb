"""Our own backend, and the default: regexes, EBNF, JSON schemas and structural tags as byte-level automata.

Upstream has no twin: its backends are libraries, behind the same interface. What a grammar is becomes of is in
`automata/`; here is where a request stands in it, and the one cache for all requests of an engine.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict

import numpy as np

from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.structured_output.automata.budget import Account
from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.automata.pushdown import Configuration, Pushdown
from mini_vllm.structured_output.automata.token_masks import TokenMasks
from mini_vllm.structured_output.automata.token_trie import TokenTrie
from mini_vllm.structured_output.automata.unique_items import UniqueItemPushdown
from mini_vllm.structured_output.automata.unique_masks import UniqueItemMasks
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputKey,
    StructuredOutputOptions,
    TokenVocabulary,
)
from mini_vllm.structured_output.specs import compile_spec

MAX_CACHED_GRAMMARS = 128


class MiniBackend(StructuredOutputBackend):
    """One tree of the vocabulary, and the automata of the last grammars: requests with equal grammars share all but
    their place in it. num_compiled counts what was not found."""

    def __init__(self, config: StructuredOutputsConfig, vocabulary: TokenVocabulary) -> None:
        super().__init__(config, vocabulary)
        self.trie = TokenTrie.build(vocabulary.tokens, vocabulary.vocab_size)
        self.num_compiled = 0
        self._compiled: OrderedDict[StructuredOutputKey, TokenMasks] = OrderedDict()
        self._lock = threading.Lock()

    def compile_grammar(self, request_type: StructuredOutputOptions, grammar_spec: str) -> StructuredOutputGrammar:
        """See `StructuredOutputBackend`. Raises GrammarError where no token of the vocabulary can be the first."""
        key = request_type, grammar_spec
        with self._lock:
            masks = self._compiled.get(key)
        if masks is None:
            automaton = compile_spec(request_type, grammar_spec, not self.config.disable_any_whitespace)
            if automaton.unique:
                masks = UniqueItemMasks(UniqueItemPushdown(automaton, self.trie.longest), self.trie)
            else:
                masks = TokenMasks(Pushdown(automaton, self.trie.longest), self.trie)
            with self._lock:
                self.num_compiled += 1
                masks = self._compiled.setdefault(key, masks)
                if len(self._compiled) > MAX_CACHED_GRAMMARS:
                    self._compiled.popitem(last=False)
        return MiniGrammar(masks, self.vocabulary.stop_token_ids)

    def destroy(self) -> None:
        """Forget all grammars."""
        with self._lock:
            self._compiled.clear()


class MiniGrammar(StructuredOutputGrammar):
    """A place in a grammar: the configurations after each accepted token, the present one last.

    A terminated grammar has None on top: the end of sequence was accepted. Every step that looks at stacks may raise
    GrammarError: it would cost more than `automata/budget.py` allows to a step, or to a request. The place stays.
    """

    def __init__(self, masks: TokenMasks, stop_token_ids: list[int]) -> None:
        self.masks, self.pushdown, self.trie = masks, masks.pushdown, masks.trie
        self.stop_token_ids = frozenset(stop_token_ids)
        self._stop_bits = _bits_of(stop_token_ids, self.trie.num_words)
        self._history: list[Configuration | None] = []
        self._account = Account()
        self.reset()

    def reset(self) -> None:
        """Back to the start."""
        self._history = [self.masks.start]

    @property
    def num_processed_tokens(self) -> int:
        """Tokens accepted and not rolled back."""
        return len(self._history) - 1

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """See `StructuredOutputGrammar`; False after termination, as upstream."""
        if self.is_terminated():
            return not tokens
        before, accepted = len(self._history), False
        try:
            with self._step():
                accepted = all(self._advance(token) for token in tokens)
        finally:
            if not accepted:
                del self._history[before:]
        return accepted

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """See `StructuredOutputGrammar`."""
        before, count = len(self._history), 0
        try:
            with self._step():
                while count < len(tokens) and self._advance(tokens[count]):
                    count += 1
        finally:
            del self._history[before:]
        return tokens[:count]

    def rollback(self, num_tokens: int) -> None:
        """Raises ValueError for more tokens than were accepted."""
        if not 0 <= num_tokens <= self.num_processed_tokens:
            raise ValueError(f"cannot roll back {num_tokens} tokens of {self.num_processed_tokens}")
        if num_tokens:
            del self._history[-num_tokens:]

    def fill_bitmask(self, bitmask: np.ndarray, batch_index: int) -> None:
        """See `StructuredOutputGrammar`. A row of zeros is a dead end: the vocabulary lacks what the grammar needs."""
        row = bitmask[batch_index]
        configuration = self._history[-1]
        if configuration is None:
            row.fill(-1)
            return
        with self._step():
            row[:] = self.masks.mask(configuration)
        if self.masks.may_end(configuration):
            for word, bits in self._stop_bits:
                row[word] |= bits

    def is_terminated(self) -> bool:
        """See `StructuredOutputGrammar`."""
        return self._history[-1] is None

    def is_accepting(self) -> bool:
        """True where the text may end here. Upstream has no such question: the bit of the end of sequence says it."""
        configuration = self._history[-1]
        return configuration is None or self.masks.may_end(configuration)

    def forced_bytes(self, limit: int = 256) -> bytes:
        """What has to come next, whatever the model thinks: up to `limit` bytes, none where there is a choice or the
        text may end. Upstream asks no backend for it; xgrammar calls it the jump-forward string."""
        configuration = self._history[-1]
        found = bytearray()
        if configuration is None:
            return b""
        with self._step():
            while len(found) < limit and not self.masks.may_end(configuration):
                forced = self.masks.bytes_next(configuration)
                if len(forced) != 1:
                    break
                found += forced
                configuration = self.masks.after(configuration, forced)
        return bytes(found)

    def ends_after(self, text: bytes) -> bool:
        """Whether, behind this text, which can come next, nothing can follow but the end of sequence."""
        configuration = self._history[-1]
        if configuration is None:
            return False
        with self._step():
            configuration = self.masks.after(configuration, text)
            return self.masks.may_end(configuration) and not self.masks.bytes_next(configuration)

    def _step(self) -> contextlib.AbstractContextManager[None]:
        """Room in the table, and a bound on what the step may cost."""
        if self.pushdown.is_full:
            self.pushdown.clear()
        return self.pushdown.budget.step(self._account, self.num_processed_tokens)

    def _advance(self, token: int) -> bool:
        configuration = self._history[-1]
        if configuration is None:
            return False
        if token in self.stop_token_ids:
            if not self.masks.may_end(configuration):
                return False
            self._history.append(None)
            return True
        data = self.trie.tokens[token] if 0 <= token < len(self.trie.tokens) else b""
        after = self.masks.after(configuration, data) if data else None
        if not after:
            return False
        self._history.append(after)
        return True


def _bits_of(token_ids: list[int], num_words: int) -> list[tuple[int, np.int32]]:
    """(word, bits) for these tokens."""
    bits = np.zeros(num_words * 32, bool)
    bits[[token for token in token_ids if 0 <= token < len(bits)]] = True
    words = np.packbits(bits, bitorder="little").view(np.int32)
    return [(int(word), words[word]) for word in np.flatnonzero(words)]


__all__ = ["GrammarError", "MiniBackend", "MiniGrammar"]
