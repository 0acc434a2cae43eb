"""How a request wants its prompt: which template, which tokens, and how long it may be. Upstream twin:
`vllm/renderers/params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mini_vllm.exceptions import VLLMValidationError


def merge_kwargs(defaults: Mapping[str, Any] | None, overrides: Mapping[str, Any] | None, /) -> dict[str, Any]:
    """`defaults`, with what `overrides` really says: None and "auto" say nothing.

    Upstream: upstream/vllm/renderers/params.py:28 — `merge_kwargs`.
    """
    said = {key: value for key, value in (overrides or {}).items() if not _is_unset(value)}
    return {**(defaults or {}), **said}


def _is_unset(value: Any) -> bool:
    return value is None or value == "auto"


@dataclass(frozen=True)
class ChatParams:
    """The template of a conversation and its variables; how its media are read and made ready.

    Upstream: upstream/vllm/renderers/params.py:72 — `ChatParams`.
    """

    chat_template: str | None = None
    chat_template_content_format: str = "auto"
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None

    def with_defaults(self, defaults: Mapping[str, Any] | None = None) -> ChatParams:
        """The same with variables of the server below those of the request."""
        return replace(self, chat_template_kwargs=merge_kwargs(defaults, self.chat_template_kwargs))


@dataclass(frozen=True)
class TokenizeParams:
    """Lengths in tokens, and what is done with a prompt that is too long.

    max_total_tokens: prompt and output together; None: no bound. max_output_tokens: of these, asked for as output.
    truncate_prompt_tokens: keep so many of the prompt's tokens; -1: as many as fit; None: refuse longer ones.
    truncation_side: "left" keeps the last, "right" the first; None: "left", as upstream's tokenizers for generation.
    add_special_tokens: whether the tokenizer adds its own. needs_detokenization: the prompt's text is wanted, too.
    The last two name the fields in messages.

    Raises VLLMValidationError where the numbers contradict each other.
    Upstream: upstream/vllm/renderers/params.py:129 — `TokenizeParams`.
    """

    max_total_tokens: int | None
    max_output_tokens: int = 0
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    add_special_tokens: bool = True
    needs_detokenization: bool = False
    max_total_tokens_param: str = "max_total_tokens"
    max_output_tokens_param: str = "max_output_tokens"

    @property
    def max_input_tokens(self) -> int | None:
        """What is left for the prompt; None: no bound."""
        return None if self.max_total_tokens is None else self.max_total_tokens - self.max_output_tokens

    def __post_init__(self) -> None:
        total, room, kept = self.max_total_tokens, self.max_input_tokens, self.truncate_prompt_tokens
        if total is not None and self.max_output_tokens > total:
            raise VLLMValidationError(
                f"{self.max_output_tokens_param}={self.max_output_tokens} cannot be greater than "
                f"{self.max_total_tokens_param}=max_total_tokens={total}. Please request fewer output tokens.",
                parameter=self.max_output_tokens_param,
                value=self.max_output_tokens,
            )
        if room is not None and kept is not None and kept > room:
            raise VLLMValidationError(
                f"truncate_prompt_tokens={kept} cannot be greater than {self.max_total_tokens_param} - "
                f"{self.max_output_tokens_param} = {room}. Please request a smaller truncation size.",
                parameter="truncate_prompt_tokens",
                value=kept,
            )

    def check_text(self, text: str, max_chars_per_token: int | None) -> None:
        """Refuse a text that cannot fit, before time is spent on its tokens.

        Args:
            max_chars_per_token: of the longest token; None: not known.
        """
        room = self.max_input_tokens
        if room is None or max_chars_per_token is None or self.truncate_prompt_tokens is not None:
            return
        most = room * max_chars_per_token
        if len(text) > most:
            raise VLLMValidationError(
                f"This model's maximum context length is {self.max_total_tokens} tokens. However, you requested "
                f"{self.max_output_tokens} output tokens and your prompt contains {len(text)} characters (more than "
                f"{most} characters, which is the upper bound for {room} input tokens). Please reduce the length of "
                "the input prompt or the number of requested output tokens.",
                parameter="input_text",
                value=len(text),
            )

    def cut_as_tokenizer(self, tokens: list[int], num_prefix: int) -> list[int]:
        """What upstream's tokenizer would have handed on of a text.

        It stops one token behind the room, so that a text that is too long costs little and is still refused. Where it
        truncates, it keeps the special tokens that it has put in front.

        Args:
            num_prefix: how many these are.

        Upstream: upstream/vllm/renderers/params.py:298 — `TokenizeParams.get_encode_kwargs`.
        """
        room, kept = self.max_input_tokens, self.truncate_prompt_tokens
        if kept is None:
            return tokens if room is None else tokens[: room + 1]
        kept = room if kept < 0 else kept
        if self.truncation_side is not None or kept is None or not num_prefix <= kept < len(tokens):
            return tokens
        return tokens[:num_prefix] + tokens[len(tokens) - kept + num_prefix :]

    def apply(self, tokens: list[int]) -> list[int]:
        """The tokens, cut where that was asked for. Raises VLLMValidationError where they are too many.

        Upstream: upstream/vllm/renderers/params.py:453 — `TokenizeParams.apply_post_tokenization`.
        """
        tokens = self._truncate(tokens)
        room, count = self.max_input_tokens, len(tokens)
        if room is None or count <= room:
            return tokens
        least = "at least " if count == room + 1 else ""
        raise VLLMValidationError(
            f"This model's maximum context length is {self.max_total_tokens} tokens. However, you requested "
            f"{self.max_output_tokens} output tokens and your prompt contains {least}{count} input tokens, for a total "
            f"of {least}{count + self.max_output_tokens} tokens. Please reduce the length of the input prompt or the "
            "number of requested output tokens.",
            parameter="input_tokens",
            value=count,
        )

    def _truncate(self, tokens: list[int]) -> list[int]:
        kept = self.truncate_prompt_tokens
        if kept is not None and kept < 0:
            kept = self.max_input_tokens
        if kept is None or kept >= len(tokens):
            return tokens
        return tokens[:kept] if self.truncation_side == "right" else tokens[len(tokens) - kept :]
