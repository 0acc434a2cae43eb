"""`/v1/embeddings` and `/v2/embed`. Upstream twin: `vllm/entrypoints/pooling/embed/protocol.py`."""

from __future__ import annotations

import builtins
import time
from typing import Literal

from pydantic import BaseModel, Field

from mini_vllm.entrypoints.openai.engine.protocol import OpenAIBaseModel, UsageInfo
from mini_vllm.entrypoints.pooling.base.protocol import EncodingRequestMixin, InputRequest
from mini_vllm.utils import random_uuid


class EmbeddingRequest(InputRequest, EncodingRequestMixin):
    """Upstream: upstream/vllm/entrypoints/pooling/embed/protocol.py:31 — `EmbeddingCompletionRequest`."""

    dimensions: int | None = None


class EmbeddingResponseData(OpenAIBaseModel):
    """One vector."""

    index: int
    object: str = "embedding"
    embedding: list[float] | str


class EmbeddingResponse(OpenAIBaseModel):
    """Upstream: upstream/vllm/entrypoints/pooling/embed/protocol.py:73 — `EmbeddingResponse`."""

    id: str = Field(default_factory=lambda: f"embd-{random_uuid()}")
    object: str = "list"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str | None = None
    data: list[EmbeddingResponseData]
    usage: UsageInfo


class CohereEmbedRequest(BaseModel):
    """Texts alone. Upstream: upstream/vllm/entrypoints/pooling/embed/protocol.py:111 — `CohereEmbedRequest`."""

    model: str | None = None
    input_type: str | None = None
    texts: list[str] = Field(min_length=1)
    output_dimension: int | None = None
    embedding_types: list[Literal["float", "binary", "ubinary", "base64"]] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: int | None = None
    priority: int = 0


class CohereEmbedByTypeEmbeddings(BaseModel):
    """The same vectors in every way that was asked for."""

    float: list[list[builtins.float]] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None
