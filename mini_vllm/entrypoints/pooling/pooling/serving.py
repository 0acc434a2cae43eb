"""Whatever the model pools, over HTTP. Upstream twin: `vllm/entrypoints/pooling/pooling/serving.py`."""

from __future__ import annotations

import time

from fastapi import Request

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.pooling.base.serving import PoolingServing, encoded, get_pooling_usage
from mini_vllm.entrypoints.pooling.offline import verify_pooling_task
from mini_vllm.entrypoints.pooling.pooling.protocol import PoolingRequest, PoolingResponse, PoolingResponseData


class ServingPooling(PoolingServing):
    """Upstream: upstream/vllm/entrypoints/pooling/pooling/serving.py:33 — `ServingPooling`."""

    async def create_pooling(
        self, request: PoolingRequest, raw_request: Request | None = None
    ) -> PoolingResponse | ErrorResponse:
        """The result of each input: a vector, or one for every token."""
        if (refused := self._check_model(request.model)) is not None:
            return refused
        supported = self.engine_client.config.supported_tasks
        task = request.task or supported[0]
        verify_pooling_task(task, supported)
        created = int(time.time())
        request_id, outputs = await self.pool_inputs(request, task, raw_request)
        items = [
            PoolingResponseData(index=i, data=encoded(output.outputs.data, request.encoding_format))
            for i, output in enumerate(outputs)
        ]
        return PoolingResponse(
            id=request_id, created=created, model=self.models.model_name(), data=items, usage=get_pooling_usage(outputs)
        )
