"""A machine of the learner's in the engine: given material, nothing to edit here.

`serve(llm, start, allowed, step, ends)` makes it the engine's grammar, whatever a request then asks for:

    start     () -> a state
    allowed   state -> ids of the tokens that may come next
    step      (state, text of a token) -> the state after it, None where it cannot stand there
    ends      state -> whether the text may end here

States are never changed, only replaced, so that going back is to remember the earlier ones. The texts of tokens are
their bytes as Latin-1, one character a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mini_vllm import LLM
from mini_vllm.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar


class LabGrammar(StructuredOutputGrammar):
    """Where a request stands: the states after each of its tokens. None on top: the end of sequence was accepted."""

    def __init__(self, backend: LabBackend) -> None:
        self.backend = backend
        self.history: list[Any] = [backend.start()]

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        before = len(self.history)
        for token in tokens:
            if not self._advance(token):
                del self.history[before:]
                return False
        return True

    def _advance(self, token: int) -> bool:
        state, backend = self.history[-1], self.backend
        if token in backend.vocabulary.stop_token_ids:
            if state is None or not backend.ends(state):
                return False
            self.history.append(None)
            return True
        target = backend.step(state, backend.texts[token]) if state is not None and backend.texts[token] else None
        if target is None:
            return False
        self.history.append(target)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        count = 0
        while count < len(tokens) and self._advance(tokens[count]):
            count += 1
        self.rollback(count)
        return tokens[:count]

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            del self.history[-num_tokens:]

    def fill_bitmask(self, bitmask: np.ndarray, batch_index: int) -> None:
        state, backend = self.history[-1], self.backend
        allowed = np.zeros(bitmask.shape[1] * 32, bool)
        allowed[list(backend.allowed(state))] = True
        if backend.ends(state):
            allowed[backend.vocabulary.stop_token_ids] = True
        bitmask[batch_index] = np.packbits(allowed, bitorder="little").view(np.int32)

    def is_terminated(self) -> bool:
        return self.history[-1] is None

    def reset(self) -> None:
        del self.history[1:]


class LabBackend(StructuredOutputBackend):
    """Grammars of one kind: the learner's."""

    start: Callable[[], Any]
    allowed: Callable[[Any], Iterable[int]]
    step: Callable[[Any, str], Any]
    ends: Callable[[Any], bool]

    def __init__(self, config: Any, vocabulary: Any) -> None:
        super().__init__(config, vocabulary)
        self.texts = texts_of(vocabulary)

    def compile_grammar(self, request_type: Any, grammar_spec: str) -> LabGrammar:
        return LabGrammar(self)


def texts_of(vocabulary: Any) -> list[str]:
    """One character a byte; "" for what is no text."""
    texts = [token.decode("latin-1") for token in vocabulary.tokens]
    return texts + [""] * (vocabulary.vocab_size - len(texts))


def manager_of(llm: LLM) -> Any:
    """The engine's manager of grammars."""
    return llm.llm_engine.scheduler.structured_output_manager


def serve(llm: LLM, start: Any, allowed: Any, step: Any, ends: Any) -> LabBackend:
    """See the head of this file. Returns the backend, whose `texts` are the vocabulary."""
    manager = manager_of(llm)
    backend = LabBackend(manager.config, manager._make_vocabulary())
    backend.start, backend.allowed, backend.step, backend.ends = start, allowed, step, ends
    manager.backend = backend
    return backend
