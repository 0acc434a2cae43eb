"""`/score` and `/rerank`. Upstream twin: `vllm/entrypoints/pooling/scoring/protocol.py`."""

from __future__ import annotations

import time
from typing import Any

from pydantic import AliasChoices, BaseModel, Field

from mini_vllm.entrypoints.openai.engine.protocol import OpenAIBaseModel, UsageInfo
from mini_vllm.entrypoints.pooling.base.protocol import PoolingBasicRequestMixin
from mini_vllm.utils import random_uuid


class ScoreRequest(PoolingBasicRequestMixin):
    """Two lists of texts, under any of upstream's names: queries, text_1, data_1; documents, items, text_2, data_2.

    Upstream: upstream/vllm/entrypoints/pooling/scoring/protocol.py:130 — `ScoreRequest`.
    """

    data_1: str | list[str] = Field(validation_alias=AliasChoices("data_1", "queries", "text_1"))
    data_2: str | list[str] = Field(validation_alias=AliasChoices("data_2", "documents", "items", "text_2"))


class RerankRequest(PoolingBasicRequestMixin):
    """One query and its documents; `top_n` 0 means all.

    Upstream: upstream/vllm/entrypoints/pooling/scoring/protocol.py:138 — `RerankRequest`.
    """

    query: str
    documents: str | list[str]
    top_n: int = Field(default=0, ge=0)


class ScoreResponseData(OpenAIBaseModel):
    """One pair."""

    index: int
    object: str = "score"
    score: float


class ScoreResponse(OpenAIBaseModel):
    """Upstream: upstream/vllm/entrypoints/pooling/scoring/protocol.py:178 — `ScoreResponse`."""

    id: str = Field(default_factory=lambda: f"embd-{random_uuid()}")
    object: str = "list"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    data: list[ScoreResponseData]
    usage: UsageInfo


class RerankDocument(BaseModel):
    """The text as it was given."""

    text: str | None = None
    multi_modal: Any = None


class RerankResult(BaseModel):
    """`index`: the document's place in the request."""

    index: int
    document: RerankDocument
    relevance_score: float


class RerankUsage(BaseModel):
    """Tokens of all pairs."""

    prompt_tokens: int
    total_tokens: int


class RerankResponse(OpenAIBaseModel):
    """The best first. Upstream: upstream/vllm/entrypoints/pooling/scoring/protocol.py:165 — `RerankResponse`."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]
