"""Log-probabilities of a completion, in OpenAI's older form: four lists.

Upstream: upstream/vllm/entrypoints/openai/completion/serving.py:605 — `_create_completion_logprobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mini_vllm.entrypoints.openai.completion.protocol import CompletionLogProbs
from mini_vllm.logprobs import Logprob

LOWEST = -9999.0
"""Stands for minus infinity, which JSON has not."""


def create_completion_logprobs(
    token_ids: Sequence[int],
    entries: Sequence[dict[int, Logprob] | None],
    num_top: int,
    decode: Callable[[Logprob | None, int], str],
    initial_text_offset: int = 0,
) -> CompletionLogProbs:
    """The lists for these tokens.

    Args:
        entries: one a token; None: nothing is known of it (the first of a prompt).
        num_top: entries reported of each: so many, and one more, since the chosen token comes first.
        decode: the text of a token. initial_text_offset: characters before the first.
    """
    found: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    offset = initial_text_offset
    for token_id, entry in zip(token_ids, entries, strict=True):
        chosen = None if entry is None else entry[token_id]
        text = decode(chosen, token_id)
        top = None
        if entry is not None:
            shown = list(entry.items())[: num_top + 1]
            top = {decode(each, other): max(each.logprob, LOWEST) for other, each in shown}
        found["text_offset"].append(offset)
        found["token_logprobs"].append(None if chosen is None else max(chosen.logprob, LOWEST))
        found["tokens"].append(text)
        found["top_logprobs"].append(top)
        offset += len(text)
    return CompletionLogProbs(**found)
