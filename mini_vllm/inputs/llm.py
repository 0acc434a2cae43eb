"""The forms of a prompt. Upstream twin: `vllm/inputs/llm.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from mini_vllm.utils.checks import did_you_mean, shown

PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_LATER = {
    **dict.fromkeys(
        ("multi_modal_data", "mm_features", "mm_processor_kwargs", "multi_modal_uuids"), "the model takes text alone"
    ),
    "prompt_embeds": "embeddings are no input here",
    "token_type_ids": "`LLM.score` makes them for pairs of texts",
    "encoder_prompt": "mini_vllm has decoder-only models",
    "decoder_prompt": "mini_vllm has decoder-only models",
}
"""Keys of upstream that may be there only with the value None."""


class _Options(TypedDict, total=False):
    cache_salt: str
    """Requests share cached prefixes only with requests of the same salt."""


class TextPrompt(_Options):
    """A text, to be tokenized. Upstream: upstream/vllm/inputs/llm.py:99 — `TextPrompt`."""

    prompt: str


class _TokensPrompt(_Options):
    prompt_token_ids: list[int]


class TokensPrompt(_TokensPrompt, total=False):
    """Token ids, and the text that they stand for where it is known.

    Upstream: upstream/vllm/inputs/llm.py:106 — `TokensPrompt`.
    """

    prompt: str


PromptType = str | list[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
"""One prompt: a text, a list of token ids, or a dict with one of them."""


def check_prompt_keys(prompt: Mapping[str, Any], media: tuple[str, ...] = ()) -> None:
    """A key that upstream does not know either is an error, though upstream passes over it: a typing error in
    "cache_salt" would be silent. media: the keys of a model that takes some. Raises ValueError."""
    for key, value in prompt.items():
        if key in PROMPT_KEYS or key in media or (key in _LATER and value is None):
            continue
        if key in _LATER:
            raise ValueError(f"{key} must be None, got {shown(value, 40)}: {_LATER[key]}")
        raise ValueError(f"unknown key {key!r} in prompt{did_you_mean(key, PROMPT_KEYS)}; allowed: {list(PROMPT_KEYS)}")
