"""`/classify`. Upstream twin: `vllm/entrypoints/pooling/classify/protocol.py`."""

from __future__ import annotations

import time

from pydantic import Field

from mini_vllm.entrypoints.openai.engine.protocol import OpenAIBaseModel, UsageInfo
from mini_vllm.entrypoints.pooling.base.protocol import InputRequest
from mini_vllm.utils import random_uuid


class ClassificationRequest(InputRequest):
    """Upstream: upstream/vllm/entrypoints/pooling/classify/protocol.py:25 — `ClassificationCompletionRequest`."""


class ClassificationData(OpenAIBaseModel):
    """The probabilities of one input; `label` is the likeliest."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassificationResponse(OpenAIBaseModel):
    """Upstream: upstream/vllm/entrypoints/pooling/classify/protocol.py:63 — `ClassificationResponse`."""

    id: str = Field(default_factory=lambda: f"classify-{random_uuid()}")
    object: str = "list"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    data: list[ClassificationData]
    usage: UsageInfo
