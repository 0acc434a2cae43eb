"""Labels over HTTP. Upstream twin: `vllm/entrypoints/pooling/classify/serving.py`."""

from __future__ import annotations

import time

import numpy as np
from fastapi import Request

from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse
from mini_vllm.entrypoints.pooling.base.serving import PoolingServing, get_pooling_usage
from mini_vllm.entrypoints.pooling.classify.protocol import (
    ClassificationData,
    ClassificationRequest,
    ClassificationResponse,
)


class ServingClassification(PoolingServing):
    """Upstream: upstream/vllm/entrypoints/pooling/classify/serving.py:28 — `ServingClassification`."""

    request_id_prefix = "classify"

    async def create_classify(
        self, request: ClassificationRequest, raw_request: Request | None = None
    ) -> ClassificationResponse | ErrorResponse:
        """Probabilities and the likeliest label of each input."""
        if (refused := self._check_model(request.model)) is not None:
            return refused
        created = int(time.time())
        request_id, outputs = await self.pool_inputs(request, "classify", raw_request)
        config = self.engine_client.resolved_model.hf_config
        names = {} if config is None else config.raw.get("id2label") or {}
        items = []
        for i, output in enumerate(outputs):
            probs = np.asarray(output.outputs.data).tolist()
            label = names.get(str(int(np.argmax(probs))), f"LABEL_{int(np.argmax(probs))}")
            items.append(ClassificationData(index=i, label=label, probs=probs, num_classes=len(probs)))
        return ClassificationResponse(
            id=request_id, created=created, model=self.models.model_name(), data=items, usage=get_pooling_usage(outputs)
        )
