"""What comes out of a pooling request. Upstream has them in `vllm/outputs.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class PoolingOutput:
    """data: [E], [labels] or [rows, E]; None, and `error` says why, where the request failed or was aborted.

    Upstream: upstream/vllm/outputs.py:67 — `PoolingOutput`, whose data is a torch tensor.
    """

    data: Any
    error: str | None = None


@dataclass
class PoolingRequestOutput:
    """The result of one pooling request.

    Upstream: upstream/vllm/outputs.py:204 — `PoolingRequestOutput`.
    """

    request_id: str
    outputs: Any
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool


@dataclass
class EmbeddingOutput:
    """`embedding`: floats. Upstream: upstream/vllm/outputs.py:241 — `EmbeddingOutput`."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many."""
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    """`probs`: one for each label. Upstream: upstream/vllm/outputs.py:280 — `ClassificationOutput`."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many labels."""
        return len(self.probs)


@dataclass
class ScoringOutput:
    """`score`: a similarity, or a probability. Upstream: upstream/vllm/outputs.py:320 — `ScoringOutput`."""

    score: float


class EmbeddingRequestOutput(PoolingRequestOutput):
    """What `LLM.embed` gives (upstream/vllm/outputs.py:267 — `EmbeddingRequestOutput`)."""


class ClassificationRequestOutput(PoolingRequestOutput):
    """What `LLM.classify` gives (upstream/vllm/outputs.py:307 — `ClassificationRequestOutput`)."""


class ScoringRequestOutput(PoolingRequestOutput):
    """What `LLM.score` gives (upstream/vllm/outputs.py:344 — `ScoringRequestOutput`)."""
