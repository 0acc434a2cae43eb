"""Text out of tokens whose own text depends on their neighbours.

Upstream twin: `vllm/tokenizers/detokenizer_utils.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.tokenizers.protocol import Tokenizer

REPLACEMENT = "\ufffd"
PRIMING_TOKENS = 6
"""How many of the prompt's last tokens a decoder sees first."""


class WindowStream:
    """For tokenizers where an id's text depends on its neighbours (sentencepiece: the leading space).

    Decodes a short window of ids with and without the new one, and emits the difference.

    Upstream: upstream/vllm/tokenizers/detokenizer_utils.py:110 — `detokenize_incrementally`.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, prompt_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = list(prompt_token_ids[-PRIMING_TOKENS:])
        self._prefix = 0
        self._read = len(self._ids)

    def _difference(self) -> str:
        before = self._tokenizer.decode(self._ids[self._prefix : self._read], skip_special_tokens=self._skip)
        now = self._tokenizer.decode(self._ids[self._prefix :], skip_special_tokens=self._skip)
        return now[len(before) :] if len(now) > len(before) else ""

    def step(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is unfinished."""
        self._ids.append(token_id)
        text = self._difference()
        if not text or text.endswith(REPLACEMENT):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return text

    def flush(self) -> str:
        """The rest, at the end."""
        text = self._difference()
        self._prefix = self._read = len(self._ids)
        return text
