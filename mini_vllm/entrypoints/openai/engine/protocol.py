"""The shapes that every route shares: errors, usage, models, tool calls. Upstream twin:
`vllm/entrypoints/openai/engine/protocol.py`.

Names, order and defaults of the fields are upstream's, because clients read them.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator

from mini_vllm.entrypoints.chat_utils import make_tool_call_id
from mini_vllm.logger import init_logger
from mini_vllm.utils import random_uuid

logger = init_logger(__name__)


class OpenAIBaseModel(BaseModel):
    """A body that may have more fields than are known: they are kept, logged at debug level, and change nothing.

    Upstream: upstream/vllm/entrypoints/openai/engine/protocol.py:27 — `OpenAIBaseModel`.
    """

    model_config = ConfigDict(extra="allow")
    field_names: ClassVar[dict[type, frozenset[str]]] = {}

    @model_validator(mode="wrap")
    @classmethod
    def __log_extra_fields__(cls, data: Any, handler: Any) -> Any:
        result = handler(data)
        if isinstance(data, dict):
            known = OpenAIBaseModel.field_names.get(cls)
            if known is None:
                aliases = {field.alias for field in cls.model_fields.values() if field.alias}
                known = OpenAIBaseModel.field_names[cls] = frozenset({*cls.model_fields, *aliases})
            if unknown := data.keys() - known:
                logger.debug("fields of the request that are not known, and change nothing: %s", sorted(unknown))
        return result


class ErrorInfo(OpenAIBaseModel):
    """What is wrong: `param` names the field where one is to blame; `code` is the HTTP status."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(OpenAIBaseModel):
    """The body of every error, and the event of an error inside a stream."""

    error: ErrorInfo


class ModelPermission(OpenAIBaseModel):
    """Kept for old clients; nothing reads it."""

    id: str = Field(default_factory=lambda: f"modelperm-{random_uuid()}")
    object: str = "model_permission"
    created: int = Field(default_factory=lambda: int(time.time()))
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(OpenAIBaseModel):
    """One name that the server answers to."""

    id: str
    object: str = "model"
    created: int = Field(default_factory=lambda: int(time.time()))
    owned_by: str = "vllm"
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    permission: list[ModelPermission] = Field(default_factory=list)


class ModelList(OpenAIBaseModel):
    """The answer of `/v1/models`."""

    object: str = "list"
    data: list[ModelCard] = Field(default_factory=list)


class PromptTokenUsageInfo(OpenAIBaseModel):
    """Of the prompt's tokens, those that the prefix cache had."""

    cached_tokens: int | None = None


class UsageInfo(OpenAIBaseModel):
    """Tokens of a request, all its choices together."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None


class RequestResponseMetadata(BaseModel):
    """Left on the request's state, for middleware."""

    request_id: str
    final_usage_info: UsageInfo | None = None


class JsonSchemaResponseFormat(OpenAIBaseModel):
    """`schema` is taken by pydantic, so the field has another name here."""

    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class LegacyStructuralTag(OpenAIBaseModel):
    """One tag of the older form."""

    begin: str
    structural_tag_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    end: str


class LegacyStructuralTagResponseFormat(OpenAIBaseModel):
    """Tags and what triggers them."""

    type: Literal["structural_tag"]
    structures: list[LegacyStructuralTag]
    triggers: list[str]


class StructuralTagResponseFormat(OpenAIBaseModel):
    """The newer form: xgrammar's."""

    type: Literal["structural_tag"]
    format: Any


class ResponseFormat(OpenAIBaseModel):
    """OpenAI's three forms."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaResponseFormat | None = None


AnyResponseFormat: TypeAlias = ResponseFormat | StructuralTagResponseFormat | LegacyStructuralTagResponseFormat


class StreamOptions(OpenAIBaseModel):
    """Whether a stream ends with its usage, and whether every chunk has it."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class FunctionDefinition(OpenAIBaseModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    defer_loading: bool | None = None

    @model_serializer(mode="wrap")
    def _serialize(self, handler: Any) -> Any:
        data = handler(self)
        if self.defer_loading is None:
            data.pop("defer_loading", None)
        return data


class FunctionCall(OpenAIBaseModel):
    """`arguments` is JSON text. `id` is the model's own, where its syntax has one, and stays inside."""

    id: str | None = Field(default=None, exclude=True)
    name: str
    arguments: str


class ToolCall(OpenAIBaseModel):
    """A call of a complete answer."""

    id: str = Field(default_factory=make_tool_call_id)
    type: Literal["function"] = "function"
    function: FunctionCall


class DeltaFunctionCall(BaseModel):
    """The name comes once, the arguments piece by piece."""

    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(OpenAIBaseModel):
    """A piece of the call number `index`."""

    id: str | None = None
    type: Literal["function"] | None = None
    index: int
    function: DeltaFunctionCall | None = None


class ExtractedToolCallInformation(BaseModel):
    """What a tool parser finds in a complete output."""

    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


class DeltaMessage(OpenAIBaseModel):
    """What is new in a chat's stream."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] = Field(default_factory=list)


class GenerationError(Exception):
    """A request ended with reason "error": the server's fault, status 500.

    Upstream: upstream/vllm/entrypoints/openai/engine/protocol.py:274 — `GenerationError`.
    """

    def __init__(self, message: str = "Internal server error") -> None:
        super().__init__(message)
        self.status_code = HTTPStatus.INTERNAL_SERVER_ERROR
