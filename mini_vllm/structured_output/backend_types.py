"""What a backend of structured outputs has to do. Upstream twin: `vllm/v1/structured_output/backend_types.py`."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from mini_vllm.config.structured_outputs import StructuredOutputsConfig


class StructuredOutputOptions(enum.Enum):
    """Upstream: upstream/vllm/v1/structured_output/backend_types.py:19 — `StructuredOutputOptions`."""

    JSON = enum.auto()
    JSON_OBJECT = enum.auto()
    REGEX = enum.auto()
    GRAMMAR = enum.auto()
    CHOICE = enum.auto()
    STRUCTURAL_TAG = enum.auto()


StructuredOutputKey = tuple[StructuredOutputOptions, str]


class StructuredOutputGrammar(ABC):
    """Where one request stands in its grammar.

    Upstream: upstream/vllm/v1/structured_output/backend_types.py:31 — `StructuredOutputGrammar`.
    """

    @abstractmethod
    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Go on by these tokens; False where one of them cannot stand here (ours: nothing has changed then)."""

    @abstractmethod
    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The tokens up to the first that cannot stand here. Nothing changes."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Go back by so many tokens: drafts that were rejected."""

    @abstractmethod
    def fill_bitmask(self, bitmask: np.ndarray, batch_index: int) -> None:
        """Write which tokens may come next: bitmask[batch_index], int32[ceil(vocab / 32)], token t is bit t % 32 of
        word t // 32."""

    @abstractmethod
    def is_terminated(self) -> bool:
        """True once the end of sequence has been accepted."""

    @abstractmethod
    def reset(self) -> None:
        """Go back to the start."""


@dataclass
class TokenVocabulary:
    """What a grammar has to know of a tokenizer.

    tokens: the bytes of each id, b"" for one that no text has (special tokens, ids that nobody uses).
    stop_token_ids: what ends a text. vocab_size: columns of the logits, at least len(tokens).
    """

    tokens: list[bytes]
    stop_token_ids: list[int]
    vocab_size: int


class StructuredOutputBackend(ABC):
    """Makes grammars for one engine.

    Upstream: upstream/vllm/v1/structured_output/backend_types.py:99 — `StructuredOutputBackend`, which is given the
    whole configuration and the tokenizer.
    """

    def __init__(self, config: StructuredOutputsConfig, vocabulary: TokenVocabulary) -> None:
        self.config, self.vocabulary = config, vocabulary

    @abstractmethod
    def compile_grammar(self, request_type: StructuredOutputOptions, grammar_spec: str) -> StructuredOutputGrammar:
        """A grammar at its start. May be called in any thread. Raises ValueError where it cannot be used."""

    def allocate_token_bitmask(self, max_num_rows: int) -> np.ndarray:
        """int32[max_num_rows, ceil(vocab / 32)], everything allowed."""
        return np.full((max_num_rows, -(-self.vocabulary.vocab_size // 32)), -1, np.int32)

    def destroy(self) -> None:  # noqa: B027 (nothing to do is in order)
        """Let go of what was compiled."""
