"""One request to an OpenAI-compatible server, timed event by event.

Upstream twin: `vllm/benchmarks/lib/endpoint_request_func.py`, on aiohttp; here on httpx (extra `serve`).
"""

from __future__ import annotations

import codecs
import json
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

DONE = "[DONE]"
"""What the last event of a stream says."""


class StreamedResponseHandler:
    """Bytes in, whole events out, wherever the network cuts them, also within a character.

    Upstream: upstream/vllm/benchmarks/lib/endpoint_request_func.py:23 — `StreamedResponseHandler`, which also takes an
    event without its blank line where it happens to be whole JSON.
    """

    def __init__(self) -> None:
        self.buffer = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def add_chunk(self, chunk_bytes: bytes) -> list[str]:
        """The events that are now complete. Raises UnicodeDecodeError."""
        self.buffer = (self.buffer + self._decoder.decode(chunk_bytes)).replace("\r\n", "\n")
        *whole, self.buffer = self.buffer.split("\n\n")
        return [message for part in whole if (message := part.strip())]

    def rest(self) -> list[str]:
        """The event that the end of the stream left without its blank line, if any."""
        message, self.buffer = self.buffer.strip(), ""
        return [message] if message else []


@dataclass
class RequestFuncInput:
    """What to send. prompt: a text, token ids, or the messages of a conversation. output_len: `max_tokens`.

    Upstream: upstream/vllm/benchmarks/lib/endpoint_request_func.py:66 — `RequestFuncInput`.
    """

    prompt: Any
    api_url: str
    prompt_len: int
    output_len: int | None
    model: str
    model_name: str | None = None
    logprobs: int | None = None
    extra_headers: dict[str, str] | None = None
    extra_body: dict[str, Any] | None = None
    ignore_eos: bool = False
    request_id: str | None = None


@dataclass
class RequestFuncOutput:
    """What came back. Times in seconds: `start_time` on `time.perf_counter`, the others as intervals.

    Attributes:
        ttft: until the first event with a choice. itl: gaps between such events; one may carry several tokens.
        latency: until the last such event. output_tokens: as the server's usage says; 0 where it says nothing.
        tokens: ids of the answer, where the server sent them (`return_token_ids`).
        error: what went wrong; "" where `success`.

    Upstream: upstream/vllm/benchmarks/lib/endpoint_request_func.py:85 — `RequestFuncOutput`.
    """

    generated_text: str = ""
    success: bool = False
    latency: float = 0.0
    output_tokens: int = 0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    tpot: float = 0.0
    prompt_len: int = 0
    error: str = ""
    start_time: float = 0.0
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class RequestFunc(Protocol):
    """Sends one request. `pbar` is called when it has ended, well or not."""

    def __call__(
        self, request_func_input: RequestFuncInput, session: Any, pbar: Callable[[], Any] | None = None
    ) -> Awaitable[RequestFuncOutput]: ...


def validate_api_url(api_url: str, api_name: str, expected_suffixes: Iterable[str]) -> None:
    """Raises ValueError where the address is not one of this API.

    Upstream: upstream/vllm/benchmarks/lib/endpoint_request_func.py:110 — `_validate_api_url`.
    """
    allowed = {*expected_suffixes, "profile"}
    if not api_url.endswith(tuple(allowed)):
        raise ValueError(f"{api_name} URL must end with one of: {allowed}.")


async def async_request_openai_completions(
    request_func_input: RequestFuncInput, session: Any, pbar: Callable[[], Any] | None = None
) -> RequestFuncOutput:
    """A streamed answer of `/v1/completions`.

    session: an `httpx.AsyncClient`. What goes wrong after the address is checked is told in `error`, never raised.
    Upstream: upstream/vllm/benchmarks/lib/endpoint_request_func.py:154 — `async_request_openai_completions`.
    """
    validate_api_url(request_func_input.api_url, "OpenAI Completions API", ["completions"])
    payload = {
        "prompt": request_func_input.prompt,
        "repetition_penalty": 1.0,
        "max_tokens": request_func_input.output_len,
        "logprobs": request_func_input.logprobs,
    }
    return await _stream(request_func_input, payload, session, pbar, lambda choice: choice.get("text"))


async def async_request_openai_chat_completions(
    request_func_input: RequestFuncInput, session: Any, pbar: Callable[[], Any] | None = None
) -> RequestFuncOutput:
    """A streamed answer of `/v1/chat/completions`; a text becomes one message of the user.

    Upstream: upstream/vllm/benchmarks/lib/endpoint_request_func.py:291 — `async_request_openai_chat_completions`.
    """
    validate_api_url(request_func_input.api_url, "OpenAI Chat Completions API", ["chat/completions"])
    prompt = request_func_input.prompt
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    payload = {"messages": prompt, "max_completion_tokens": request_func_input.output_len}

    def text(choice: dict[str, Any]) -> str | None:
        delta = choice.get("delta") or {}
        return delta.get("content") or delta.get("reasoning")

    return await _stream(request_func_input, payload, session, pbar, text)


async def async_request_openai_embeddings(
    request_func_input: RequestFuncInput, session: Any, pbar: Callable[[], Any] | None = None
) -> RequestFuncOutput:
    """Vectors of one text, or of several; nothing streams, so only `latency` is told.

    Upstream: upstream/vllm/benchmarks/lib/endpoint_request_func.py:535 — `async_request_openai_embeddings`.
    """
    validate_api_url(request_func_input.api_url, "OpenAI Embeddings API", ["embeddings"])
    payload = _common(request_func_input, {"input": request_func_input.prompt, "truncate_prompt_tokens": -1})
    output = RequestFuncOutput(prompt_len=request_func_input.prompt_len, start_time=time.perf_counter())
    try:
        url, headers = request_func_input.api_url, headers_of(request_func_input)
        response = await session.post(url, json=payload, headers=headers)
        output.ttft = output.latency = time.perf_counter() - output.start_time
        if response.status_code == 200:
            output.success = True
            output.prompt_len = response.json().get("usage", {}).get("prompt_tokens", output.prompt_len)
        else:
            output.error = f"{response.status_code} {response.reason_phrase}: {response.text[:500]}"
    except Exception:
        output.error = traceback.format_exc()
    if pbar is not None:
        pbar()
    return output


def headers_of(request: RequestFuncInput) -> dict[str, str]:
    """Of one request; the key is that of the variable OPENAI_API_KEY, as upstream's. Nothing comes compressed."""
    headers = {"accept-encoding": "identity"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    headers |= request.extra_headers or {}
    if request.request_id:
        headers["x-request-id"] = request.request_id
    return headers


def _common(request: RequestFuncInput, payload: dict[str, Any]) -> dict[str, Any]:
    """The body: what every request has, what this API adds, and over both what the caller gave."""
    body = {"model": request.model_name or request.model, **payload}
    if request.ignore_eos:
        body["ignore_eos"] = True
    return body | (request.extra_body or {})


async def _stream(
    request: RequestFuncInput,
    payload: dict[str, Any],
    session: Any,
    pbar: Callable[[], Any] | None,
    text_of: Callable[[dict[str, Any]], str | None],
) -> RequestFuncOutput:
    """Send, and read until `[DONE]`. Unlike upstream, a stream that ends without it has failed."""
    body = _common(request, payload | {"stream": True, "stream_options": {"include_usage": True}})
    output = RequestFuncOutput(prompt_len=request.prompt_len, start_time=time.perf_counter())
    handler, reader = StreamedResponseHandler(), _Reader(output, text_of)
    try:
        async with session.stream("POST", request.api_url, json=body, headers=headers_of(request)) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")[:500]
                output.error = f"{response.status_code} {response.reason_phrase}: {text}"
            else:
                async for chunk in response.aiter_raw():
                    reader.take(handler.add_chunk(chunk))
                reader.take(handler.rest())
                reader.end()
    except Exception:
        output.success, output.error = False, traceback.format_exc()
    if pbar is not None:
        pbar()
    return output


class _Reader:
    """Enters the events of one stream into its output, with the time at which they came."""

    def __init__(self, output: RequestFuncOutput, text_of: Callable[[dict[str, Any]], str | None]) -> None:
        self.output, self.text_of = output, text_of
        self.last = 0.0
        self.done = False
        self.pieces: list[str] = []

    def take(self, messages: list[str]) -> None:
        """Comments (lines that start with a colon, used as pings) are passed over."""
        for message in messages:
            if message.startswith(":"):
                continue
            chunk = message.removeprefix("data:").strip()
            if chunk == DONE:
                self.done = True
                continue
            now = time.perf_counter()
            self._event(json.loads(chunk), now)

    def _event(self, data: dict[str, Any], now: float) -> None:
        output = self.output
        if data.get("error"):
            output.error = json.dumps(data["error"])
        if choices := data.get("choices"):
            if not self.last:
                output.ttft = now - output.start_time
            else:
                output.itl.append(now - self.last)
            self.last = now
            self.pieces.append(self.text_of(choices[0]) or "")
            output.tokens += choices[0].get("token_ids") or []
            output.finish_reason = choices[0].get("finish_reason") or output.finish_reason
        elif usage := data.get("usage"):
            output.output_tokens = usage.get("completion_tokens") or 0
            output.prompt_len = usage.get("prompt_tokens", output.prompt_len)

    def end(self) -> None:
        """The connection is closed: was it the whole answer?"""
        output = self.output
        output.generated_text = "".join(self.pieces)
        output.latency = (self.last or output.start_time) - output.start_time
        if not output.error and not self.last:
            output.error = "Never received a valid chunk to calculate TTFT. This response will be marked as failed!"
        if not output.error and not self.done:
            output.error = f"the stream ended before {DONE}"
        output.success = not output.error


ASYNC_REQUEST_FUNCS: dict[str, RequestFunc] = {
    "vllm": async_request_openai_completions,
    "openai": async_request_openai_completions,
    "openai-chat": async_request_openai_chat_completions,
    "openai-embeddings": async_request_openai_embeddings,
}
"""By `--backend`. Upstream: upstream/vllm/benchmarks/lib/endpoint_request_func.py:787 — "ASYNC_REQUEST_FUNCS"."""
POOLING_BACKENDS = {"openai-embeddings"}
OPENAI_COMPATIBLE_BACKENDS = [name for name in ASYNC_REQUEST_FUNCS if name not in POOLING_BACKENDS]
