"""`/tokenize` and `/detokenize`: what comes in and what goes out. Upstream twin:
`vllm/entrypoints/serve/tokenize/protocol.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field, model_validator

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionMessageParam, ChatCompletionToolsParam
from mini_vllm.entrypoints.openai.engine.protocol import OpenAIBaseModel
from mini_vllm.exceptions import VLLMValidationError
from mini_vllm.renderers.params import ChatParams, TokenizeParams, merge_kwargs


class TokenizeCompletionRequest(OpenAIBaseModel):
    """A text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False

    def build_tok_params(self, max_model_len: int) -> TokenizeParams:
        """A text of any length has its tokens."""
        return TokenizeParams(max_total_tokens=None, add_special_tokens=self.add_special_tokens)


class TokenizeChatRequest(OpenAIBaseModel):
    """A conversation, through the chat template."""

    model: str | None = None
    messages: list[ChatCompletionMessageParam]
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: list[ChatCompletionToolsParam] | None = None

    @model_validator(mode="before")
    @classmethod
    def check_generation_prompt(cls, data: Any) -> Any:
        """The last message is continued, or a new one begins."""
        if isinstance(data, dict) and data.get("continue_final_message") and data.get("add_generation_prompt"):
            raise VLLMValidationError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return data

    def build_chat_params(self, default_template: str | None, content_format: str) -> ChatParams:
        """The template and its variables."""
        switches = {
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
        }
        variables = merge_kwargs(self.chat_template_kwargs, switches)
        return ChatParams(self.chat_template or default_template, content_format, variables)

    def build_tok_params(self, max_model_len: int) -> TokenizeParams:
        """A conversation of any length has its tokens."""
        return TokenizeParams(max_total_tokens=None, add_special_tokens=self.add_special_tokens)


TokenizeRequest: TypeAlias = TokenizeCompletionRequest | TokenizeChatRequest


class TokenizeResponse(OpenAIBaseModel):
    """Ids, and their texts where asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(OpenAIBaseModel):
    """Ids."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]


class DetokenizeResponse(OpenAIBaseModel):
    """Their text."""

    prompt: str


class TokenizerInfoResponse(OpenAIBaseModel):
    """`tokenizer_config.json`, and the class of the tokenizer."""

    tokenizer_class: str
