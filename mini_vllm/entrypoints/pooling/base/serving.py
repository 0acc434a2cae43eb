"""What every pooling route does: check the model, make tokens, ask the engine for all prompts at once, collect.

Upstream twin: `vllm/entrypoints/pooling/base/serving.py`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import Request

from mini_vllm.entrypoints.openai.engine.protocol import GenerationError, UsageInfo
from mini_vllm.entrypoints.openai.engine.serving import OpenAIServing
from mini_vllm.entrypoints.serve.render.serving import prompt_to_seq
from mini_vllm.pool.outputs import PoolingRequestOutput
from mini_vllm.pool.params import PoolingParams
from mini_vllm.utils import random_uuid


class PoolingServing(OpenAIServing):
    """Upstream: upstream/vllm/entrypoints/pooling/base/serving.py:372 — `PoolingServing`."""

    request_id_prefix = "pool"

    async def render(self, request: Any, inputs: Any) -> list[dict[str, Any]]:
        """Prompts for the engine. Raises VLLMValidationError for one that is too long."""
        extras = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
        params = request.build_tok_params(self.max_model_len)
        return await self.renderer.render_cmpl_async(prompt_to_seq(inputs), params, extras)

    async def encode(
        self, prompts: Sequence[Any], params: Sequence[PoolingParams], request_id: str, request: Any
    ) -> list[PoolingRequestOutput]:
        """The results in the order of the prompts; where one is refused or fails, the others are given up.

        `request.model` may be the name of an adapter. (Upstream finds the adapter, and then that its name is no model:
        upstream/vllm/entrypoints/pooling/base/serving.py:278 — `_maybe_get_adapters`.)
        """
        settings = {"priority": request.priority, "lora_request": self.models.lora_requests.get(request.model or "")}
        tasks = [
            asyncio.ensure_future(self._one(prompt, its, f"{request_id}-{i}", settings))
            for i, (prompt, its) in enumerate(zip(prompts, params, strict=True))
        ]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _one(
        self, prompt: Any, params: PoolingParams, request_id: str, settings: dict[str, Any]
    ) -> PoolingRequestOutput:
        if self.request_logger is not None:
            self.request_logger.log_inputs(request_id, prompt.get("prompt"), prompt["prompt_token_ids"], None)
        inside = f"{request_id}-{random_uuid():.8}"
        async for output in self.engine_client.encode(dict(prompt), params, inside, **settings):
            if output.outputs.data is None:
                raise GenerationError(output.outputs.error or "Internal server error")
            return output
        raise GenerationError("No output received from the engine.")

    async def pool_inputs(
        self, request: Any, task: str, raw_request: Request | None
    ) -> tuple[str, list[PoolingRequestOutput]]:
        """The id of a request, and what became of each of its inputs."""
        request_id, _ = self._begin(self.request_id_prefix, request.request_id, raw_request)
        prompts = await self.render(request, request.input)
        params = [request.to_pooling_params(task)] * len(prompts)
        return request_id, await self.encode(prompts, params, request_id, request)


def get_pooling_usage(outputs: Sequence[PoolingRequestOutput]) -> UsageInfo:
    """The tokens of all prompts together."""
    total = sum(len(output.prompt_token_ids) for output in outputs)
    return UsageInfo(prompt_tokens=total, total_tokens=total)


def encoded(data: Any, encoding_format: str) -> Any:
    """Numbers as a list, or as base64 of little-endian float32."""
    array = np.asarray(data)
    return array.tolist() if encoding_format == "float" else base64.b64encode(array.astype("<f4").tobytes()).decode()
