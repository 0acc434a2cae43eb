"""Scores over HTTP. Upstream twin: `vllm/entrypoints/pooling/scoring/serving.py`."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.pooling.base.serving import PoolingServing, get_pooling_usage
from mini_vllm.entrypoints.pooling.offline import scoring_processor
from mini_vllm.entrypoints.pooling.scoring.io_processor import validate_score_input
from mini_vllm.entrypoints.pooling.scoring.protocol import (
    RerankDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankUsage,
    ScoreRequest,
    ScoreResponse,
    ScoreResponseData,
)
from mini_vllm.pool.outputs import PoolingRequestOutput


class ServingScores(PoolingServing):
    """Upstream: upstream/vllm/entrypoints/pooling/scoring/serving.py:35 — `ServingScores`."""

    request_id_prefix = "score"

    async def _score(
        self, request: Any, first: Any, second: Any, raw_request: Request | None
    ) -> tuple[str, list[PoolingRequestOutput]]:
        request_id, _ = self._begin(self.request_id_prefix, request.request_id, raw_request)
        processor = scoring_processor(self.engine_client)
        data = validate_score_input(first, second)
        given, params = processor.pre_process(data, request.to_pooling_params(processor.task))
        texts = [item["prompt_token_ids"] if isinstance(item, dict) else item for item in given]
        prompts = await self.render(request, texts)
        outputs = await self.encode(prompts, params, request_id, request)
        return request_id, processor.post_process(outputs, len(data.data_1))

    async def create_score(
        self, request: ScoreRequest, raw_request: Request | None = None
    ) -> ScoreResponse | ErrorResponse:
        """A score for each pair."""
        if (refused := self._check_model(request.model)) is not None:
            return refused
        created = int(time.time())
        request_id, outputs = await self._score(request, request.data_1, request.data_2, raw_request)
        items = [ScoreResponseData(index=i, score=output.outputs.score) for i, output in enumerate(outputs)]
        return ScoreResponse(
            id=request_id, created=created, model=self.models.model_name(), data=items, usage=get_pooling_usage(outputs)
        )

    async def do_rerank(
        self, request: RerankRequest, raw_request: Request | None = None
    ) -> RerankResponse | ErrorResponse:
        """The documents by their scores, the best first; of equals the earlier first."""
        if (refused := self._check_model(request.model)) is not None:
            return refused
        request_id, outputs = await self._score(request, request.query, request.documents, raw_request)
        documents = [request.documents] if isinstance(request.documents, str) else request.documents
        results = [
            RerankResult(index=i, document=RerankDocument(text=documents[i]), relevance_score=output.outputs.score)
            for i, output in enumerate(outputs)
        ]
        results.sort(key=lambda result: result.relevance_score, reverse=True)
        usage = get_pooling_usage(outputs)
        return RerankResponse(
            id=request_id, model=self.models.model_name(), results=results[: request.top_n or None],
            usage=RerankUsage(prompt_tokens=usage.prompt_tokens, total_tokens=usage.total_tokens),
        )  # fmt: skip
