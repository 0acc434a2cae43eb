"""Vectors over HTTP. Upstream twin: `vllm/entrypoints/pooling/embed/serving.py`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from fastapi import Request

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.pooling.base.serving import PoolingServing, encoded, get_pooling_usage
from mini_vllm.entrypoints.pooling.embed.protocol import (
    CohereEmbedByTypeEmbeddings,
    CohereEmbedRequest,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingResponseData,
)

_SIDES: dict[str, Any] = {"NONE": None, "START": "left", "END": "right"}


class ServingEmbedding(PoolingServing):
    """Upstream: upstream/vllm/entrypoints/pooling/embed/serving.py:42 — `ServingEmbedding`."""

    request_id_prefix = "embd"

    async def create_embedding(
        self, request: EmbeddingRequest, raw_request: Request | None = None
    ) -> EmbeddingResponse | ErrorResponse:
        """A vector for each input."""
        if (refused := self._check_model(request.model)) is not None:
            return refused
        created = int(time.time())
        request_id, outputs = await self.pool_inputs(request, "embed", raw_request)
        items = [
            EmbeddingResponseData(index=i, embedding=encoded(output.outputs.data, request.encoding_format))
            for i, output in enumerate(outputs)
        ]
        return EmbeddingResponse(
            id=request_id, created=created, model=self.models.model_name(), data=items, usage=get_pooling_usage(outputs)
        )

    async def create_cohere_embedding(
        self, request: CohereEmbedRequest, raw_request: Request | None = None
    ) -> dict[str, Any] | ErrorResponse:
        """As Cohere's API says it: several encodings at once, and what was billed.

        Upstream: upstream/vllm/entrypoints/pooling/embed/serving.py:178 — `_build_cohere_response_from_ctx`.
        """
        if (refused := self._check_model(request.model)) is not None:
            return refused
        kept = None if request.truncate == "NONE" else request.max_tokens or -1
        inner = EmbeddingRequest(
            model=request.model, input=request.texts, dimensions=request.output_dimension, priority=request.priority,
            truncate_prompt_tokens=kept, truncation_side=_SIDES[request.truncate],
        )  # fmt: skip
        request_id, outputs = await self.pool_inputs(inner, "embed", raw_request)
        vectors = np.stack([output.outputs.data for output in outputs])
        by_type = CohereEmbedByTypeEmbeddings(**{
            kind: _typed(vectors, kind) for kind in request.embedding_types or ["float"]
        })  # fmt: skip
        return {
            "id": request_id,
            "embeddings": by_type.model_dump(exclude_none=True),
            "texts": request.texts,
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": get_pooling_usage(outputs).prompt_tokens, "image_tokens": 0},
            },
            "response_type": "embeddings_by_type",
        }


def _typed(vectors: np.ndarray, kind: str) -> Any:
    """Numbers; base64 of them; or the sign of each as a bit, eight to a byte, from -128 or from 0 on.

    Upstream: upstream/vllm/entrypoints/pooling/embed/protocol.py:167 — `_pack_binary_embeddings`.
    """
    if kind in ("float", "base64"):
        return [encoded(vector, kind) for vector in vectors]
    if vectors.shape[1] % 8:
        raise ValueError(
            f"Embedding dimension must be a multiple of 8 for binary embedding types, but got {vectors.shape[1]}."
        )
    packed = np.packbits(vectors >= 0, axis=1).astype(int)
    return (packed - 128 if kind == "binary" else packed).tolist()
