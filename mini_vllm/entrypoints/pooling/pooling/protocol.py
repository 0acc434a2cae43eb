"""`/pooling`. Upstream twin: `vllm/entrypoints/pooling/pooling/protocol.py`."""

from __future__ import annotations

import time

from pydantic import Field

from mini_vllm.entrypoints.openai.engine.protocol import OpenAIBaseModel, UsageInfo
from mini_vllm.entrypoints.pooling.base.protocol import EncodingRequestMixin, InputRequest
from mini_vllm.utils import random_uuid


class PoolingRequest(InputRequest, EncodingRequestMixin):
    """`task`: by default the chief one of the model.

    Upstream: upstream/vllm/entrypoints/pooling/pooling/protocol.py:26 — `PoolingCompletionRequest`.
    """

    task: str | None = None
    dimensions: int | None = None


class PoolingResponseData(OpenAIBaseModel):
    """What was pooled of one input."""

    index: int
    object: str = "pooling"
    data: list[list[float]] | list[float] | str


class PoolingResponse(OpenAIBaseModel):
    """Upstream: upstream/vllm/entrypoints/pooling/pooling/protocol.py:106 — `PoolingResponse`."""

    id: str = Field(default_factory=lambda: f"pool-{random_uuid()}")
    object: str = "list"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    data: list[PoolingResponseData]
    usage: UsageInfo
