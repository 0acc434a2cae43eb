"""Which routes a model that pools has. Upstream twin: `vllm/entrypoints/pooling/factories.py`."""

from __future__ import annotations

import contextlib
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State

from mini_vllm.entrypoints.pooling.classify.api_router import router as classify_router
from mini_vllm.entrypoints.pooling.classify.serving import ServingClassification
from mini_vllm.entrypoints.pooling.embed.api_router import router as embed_router
from mini_vllm.entrypoints.pooling.embed.serving import ServingEmbedding
from mini_vllm.entrypoints.pooling.offline import scoring_processor
from mini_vllm.entrypoints.pooling.pooling.api_router import router as pooling_router
from mini_vllm.entrypoints.pooling.pooling.serving import ServingPooling
from mini_vllm.entrypoints.pooling.scoring.api_router import router as score_router
from mini_vllm.entrypoints.pooling.scoring.serving import ServingScores


def attach_pooling(app: FastAPI | None, engine_client: Any, state: State, common: tuple[Any, ...]) -> None:
    """What serves, as the tasks of the model allow, and the routes, where there is an app.

    Args: common: the arguments of every `OpenAIServing`.

    Upstream: upstream/vllm/entrypoints/pooling/factories.py:104 — `register_pooling_api_routers`.
    """
    supported = engine_client.config.supported_tasks
    state.serving_pooling = ServingPooling(*common)
    routers = [pooling_router]
    if "embed" in supported:
        state.serving_embedding = ServingEmbedding(*common)
        routers.append(embed_router)
    if "classify" in supported:
        state.serving_classification = ServingClassification(*common)
        routers.append(classify_router)
    with contextlib.suppress(ValueError):
        scoring_processor(engine_client)
        state.serving_scores = ServingScores(*common)
        routers.append(score_router)
    if app is not None:
        for router in routers:
            app.include_router(router)
