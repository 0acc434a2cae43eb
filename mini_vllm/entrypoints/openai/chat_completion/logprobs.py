"""Log-probabilities of a chat's answer, in OpenAI's newer form: one entry a token.

Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:1467 — `_create_chat_logprobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionLogProb,
    ChatCompletionLogProbs,
    ChatCompletionLogProbsContent,
)
from mini_vllm.logprobs import Logprob

LOWEST = -9999.0
"""Stands for minus infinity, which JSON has not."""
Decode = Callable[[Logprob | None, int], str]


def create_chat_logprobs(
    token_ids: Sequence[int], entries: Sequence[dict[int, Logprob] | None], num_top: int, decode: Decode
) -> ChatCompletionLogProbs:
    """The entries of these tokens.

    Args:
        num_top: alternatives of each token; -1: all that are known. decode: the text of a token.
    """
    content = [_entry(token_id, entry, num_top, decode) for token_id, entry in zip(token_ids, entries, strict=True)]
    return ChatCompletionLogProbs(content=content)


def _entry(
    token_id: int, entry: dict[int, Logprob] | None, num_top: int, decode: Decode
) -> ChatCompletionLogProbsContent:
    chosen = None if entry is None else entry.get(token_id)
    token = decode(chosen, token_id)
    if entry is None or chosen is None:
        return ChatCompletionLogProbsContent(token=token, bytes=_bytes(token))
    shown = entry.items() if num_top == -1 else islice(entry.items(), max(num_top, 0))
    alternatives = [
        ChatCompletionLogProb(
            token=(text := decode(each, other)), logprob=max(each.logprob, LOWEST), bytes=_bytes(text)
        )
        for other, each in shown
    ]
    decoded = chosen.decoded_token
    return ChatCompletionLogProbsContent(
        token=token,
        logprob=max(chosen.logprob, LOWEST),
        bytes=None if decoded is None else _bytes(decoded),
        top_logprobs=alternatives,
    )


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8", errors="replace"))
