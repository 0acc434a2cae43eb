"""What the engine needs of a tokenizer. Upstream twin: `vllm/tokenizers/protocol.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    is_byte_level: bool
    """Each id stands for fixed bytes, so that text can be streamed byte by byte."""
    vocab_size: int
    eos_token_id: int | None
    bos_token_id: int | None
    all_special_ids: list[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ids."""

    def id_to_bytes(self, token_id: int) -> bytes:
        """The bytes that one id stands for."""
