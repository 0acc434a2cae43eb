"""What the server's routes share: errors as bodies, the room for an answer, clients that leave. Upstream twin:
`vllm/entrypoints/utils.py`.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError
from mini_vllm.entrypoints.openai.engine.protocol import ErrorInfo, ErrorResponse, GenerationError, StreamOptions
from mini_vllm.entrypoints.openai.own_words import says_what_is_wrong
from mini_vllm.exceptions import VLLMNotFoundError, VLLMValidationError
from mini_vllm.logger import init_logger

Handler = Callable[..., Awaitable[Any]]
logger = init_logger(__name__)


async def listen_for_disconnect(request: Request) -> None:
    """Return when the client has gone. It takes all messages: the body must have been read.

    Upstream: upstream/vllm/entrypoints/utils.py:42 — `listen_for_disconnect`.
    """
    while (await request.receive())["type"] != "http.disconnect":
        pass


def with_cancellation(handler: Handler) -> Handler:
    """A route whose handler is cancelled when the client leaves before the answer is there.

    A stream looks after itself once it has begun: `EventStreamResponse`.
    Upstream: upstream/vllm/entrypoints/utils.py:57 — `with_cancellation`.
    """

    @functools.wraps(handler)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        request = args[1] if len(args) > 1 else kwargs["raw_request"]
        work: asyncio.Future[Any] = asyncio.ensure_future(handler(*args, **kwargs))
        gone = asyncio.create_task(listen_for_disconnect(request))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_done = work.done()
            for task in (work, gone):
                task.cancel()
        if was_done:
            return work.result()
        await asyncio.gather(work, return_exceptions=True)
        return Response(status_code=499)  # nobody reads it

    return wrapper


def load_aware_call(handler: Handler) -> Handler:
    """Count the request in `/load` until its answer has been sent, where the server tracks that.

    Upstream: upstream/vllm/entrypoints/utils.py:106 — `load_aware_call`; there a client that leaves a stream stays in
    the count.
    """

    @functools.wraps(handler)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        request: Any = args[1] if len(args) > 1 else kwargs["raw_request"]
        state = request.app.state
        if not getattr(state, "enable_server_load_tracking", False):
            return await handler(*args, **kwargs)
        state.server_load_metrics += 1
        try:
            response = await handler(*args, **kwargs)
        except BaseException:
            state.server_load_metrics -= 1
            raise
        if isinstance(response, EventStreamResponse):
            response.at_end.append(lambda: _leave(state))
        else:
            _leave(state)
        return response

    return wrapper


def _leave(state: Any) -> None:
    state.server_load_metrics -= 1


class EventStreamResponse(StreamingResponse):
    """Server-sent events from an async generator, which is closed when the client leaves, wherever it stands then.

    A generator that is waiting inside `yield` hears nothing of a cancelled task; closing it ends its request in the
    engine at once. `at_end` has what else is to be done.
    """

    media_type = "text/event-stream"

    def __init__(self, content: Any, **kwargs: Any) -> None:
        super().__init__(content, **kwargs)
        self.at_end: list[Callable[[], None]] = []
        self._source = content

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for each in self.at_end:
                each()
            await self._source.aclose()


def get_max_tokens(
    max_model_len: int,
    max_tokens: int | None,
    input_length: int,
    default_sampling_params: Mapping[str, Any],
    override_max_tokens: int | None = None,
    truncate_prompt_tokens: int | None = None,
) -> int:
    """The least of: what the request asks for (else the model's default), the server's own bound, and the context's
    rest behind the prompt.

    Raises:
        ValueError: the prompt is longer than the context.

    Upstream: upstream/vllm/entrypoints/utils.py:175 — `get_max_tokens`.
    """
    if truncate_prompt_tokens is not None:
        limit = max_model_len if truncate_prompt_tokens == -1 else truncate_prompt_tokens
        input_length = min(input_length, limit)
    if max_model_len < input_length:
        raise ValueError(f"Input length ({input_length}) exceeds model's maximum context length ({max_model_len}).")
    wanted = max_tokens if max_tokens is not None else default_sampling_params.get("max_tokens")
    bounds = (max_model_len - input_length, wanted, override_max_tokens)
    return min(bound for bound in bounds if bound is not None)


def should_include_usage(stream_options: StreamOptions | None, enable_force_include_usage: bool) -> tuple[bool, bool]:
    """Whether a stream ends with its usage, and whether every chunk has it.

    Upstream: upstream/vllm/entrypoints/utils.py:281 — `should_include_usage`.
    """
    if enable_force_include_usage:
        return True, True
    include = bool(stream_options and stream_options.include_usage)
    return include, include and bool(stream_options and stream_options.continuous_usage_stats)


def sanitize_message(message: str) -> str:
    """Without memory addresses (upstream/vllm/entrypoints/utils.py:317 — `sanitize_message`)."""
    return re.sub(r" at 0x[0-9a-f]+>", ">", message)


def create_error_response(
    message: str | Exception,
    err_type: str = "BadRequestError",
    status_code: HTTPStatus = HTTPStatus.BAD_REQUEST,
    param: str | None = None,
) -> ErrorResponse:
    """An error's body; of an exception, with the type and status that its class stands for.

    Upstream: upstream/vllm/entrypoints/utils.py:347 — `create_error_response`.
    """
    if isinstance(message, Exception):
        err_type, status_code, param = _classify(message)
        message = _sentence(message, status_code)
    info = ErrorInfo(message=sanitize_message(message), type=err_type, code=status_code.value, param=param)
    return ErrorResponse(error=info)


def _sentence(error: Exception, status: HTTPStatus) -> str:
    """What a client is told; of a bug its kind alone, since Python's words say nothing to whoever asked."""
    if status != HTTPStatus.INTERNAL_SERVER_ERROR or isinstance(error, GenerationError | EngineDeadError):
        return str(error)
    cause = error.__cause__ if isinstance(error, EngineGenerateError) and error.__cause__ is not None else error
    if isinstance(error, ValueError | TypeError | OverflowError):
        logger.error("a request failed by a fault of the server's", exc_info=error)
    return f"Internal server error: {type(cause).__name__} while the request was answered. The server's log says where."


def _classify(error: Exception) -> tuple[str, HTTPStatus, str | None]:
    if isinstance(error, VLLMValidationError):
        return "BadRequestError", HTTPStatus.BAD_REQUEST, error.parameter
    if isinstance(error, VLLMNotFoundError):
        return "NotFoundError", HTTPStatus.NOT_FOUND, None
    if isinstance(error, ValueError | TypeError | OverflowError) and says_what_is_wrong(error):
        return "BadRequestError", HTTPStatus.BAD_REQUEST, None
    if isinstance(error, NotImplementedError):
        return "NotImplementedError", HTTPStatus.NOT_IMPLEMENTED, None
    if isinstance(error, GenerationError):
        return "InternalServerError", error.status_code, None
    return "InternalServerError", HTTPStatus.INTERNAL_SERVER_ERROR, None
