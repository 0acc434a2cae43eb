"""A file of requests, answered without a server. Upstream twin: `vllm/entrypoints/openai/run_batch.py`.

Each line of the input is {"custom_id", "method": "POST", "url", "body"}; each line of the output has the answer under
the same `custom_id`, in the same order.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.datastructures import State

from mini_vllm.entrypoints.openai.api_server import build_async_engine_client, init_app_state
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.completion.protocol import CompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import ErrorResponse, OpenAIBaseModel
from mini_vllm.entrypoints.utils import create_error_response
from mini_vllm.utils import random_uuid

Handler = Callable[[Any], Awaitable[Any]]


class BatchRequestInput(OpenAIBaseModel):
    """A line of the input.

    Upstream: upstream/vllm/entrypoints/openai/run_batch.py:147 — `BatchRequestInput`.
    """

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class BatchResponseData(OpenAIBaseModel):
    """What a server would have answered."""

    status_code: int = 200
    request_id: str
    body: Any | None = None


class BatchRequestOutput(OpenAIBaseModel):
    """A line of the output.

    Upstream: upstream/vllm/entrypoints/openai/run_batch.py:212 — `BatchRequestOutput`.
    """

    id: str
    custom_id: str
    response: BatchResponseData | None
    error: Any | None


def read_requests(path: str) -> list[BatchRequestInput]:
    """The lines of a file. Raises ValueError with the number of the line that is no request, or an id twice."""
    found: list[BatchRequestInput] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(BatchRequestInput.model_validate_json(line))
        except ValidationError as error:
            raise ValueError(f"{path}, line {number}: {error.errors()[0]['msg']}") from None
    ids = [request.custom_id for request in found]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{path}: custom_id {next(i for i in ids if ids.count(i) > 1)!r} stands there more than once")
    return found


async def run_request(
    request: BatchRequestInput, kinds: dict[str, tuple[type[BaseModel], Handler]]
) -> BatchRequestOutput:
    """The line that answers one request; what is wrong with it stands in `error`.

    Upstream: upstream/vllm/entrypoints/openai/run_batch.py:537 — `run_request`.
    """
    if request.url not in kinds:
        return _failed(request, f"URL {request.url} was used. Supported endpoints: {', '.join(kinds)}.")
    model, handler = kinds[request.url]
    try:
        answer = await handler(model.model_validate(request.body))
    except Exception as error:
        answer = create_error_response(error)
    if isinstance(answer, ErrorResponse):
        return _failed(request, answer.model_dump(), answer.error.code)
    if not isinstance(answer, BaseModel):
        await answer.aclose()
        return _failed(request, "Request must not be sent in stream mode")
    return _line(request, BatchResponseData(body=answer.model_dump(), request_id=f"vllm-batch-{random_uuid()}"), None)


def _failed(request: BatchRequestInput, error: Any, status: int = HTTPStatus.BAD_REQUEST.value) -> BatchRequestOutput:
    return _line(request, BatchResponseData(status_code=status, request_id=f"vllm-batch-{random_uuid()}"), error)


def _line(request: BatchRequestInput, response: BatchResponseData, error: Any) -> BatchRequestOutput:
    return BatchRequestOutput(id=f"vllm-{random_uuid()}", custom_id=request.custom_id, response=response, error=error)


async def run_batch(engine_client: Any, args: Namespace) -> list[BatchRequestOutput]:
    """Answer all lines of `args.input_file` at once, and write `args.output_file`.

    Upstream: upstream/vllm/entrypoints/openai/run_batch.py:801 — `run_batch`.
    """
    requests = read_requests(args.input_file)
    state = State()
    init_app_state(engine_client, state, args)
    await state.openai_serving_models.init_static_loras()
    kinds: dict[str, tuple[type[BaseModel], Handler]] = {
        "/v1/chat/completions": (ChatCompletionRequest, state.openai_serving_chat.create_chat_completion),
        "/v1/completions": (CompletionRequest, state.openai_serving_completion.create_completion),
    }
    answers = await asyncio.gather(*(run_request(request, kinds) for request in requests))
    lines = [json.dumps(answer.model_dump(), ensure_ascii=False) for answer in answers]
    Path(args.output_file).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return answers


async def main(args: Namespace) -> list[BatchRequestOutput]:
    """Make the engine, answer, end it."""
    async with build_async_engine_client(args) as engine_client:
        return await run_batch(engine_client, args)
