"""One request to one engine, and what can go wrong with it. Nobody waits for an engine that is gone.

Upstream: upstream/tests/v1/kv_connector/nixl_integration/toy_proxy_server.py:155 — `send_request_to_service`,
`:200` — `stream_service_response`; they wait for as long as it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import httpx

from mini_vllm.entrypoints.disagg_proxy.instances import Instance
from mini_vllm.entrypoints.openai.engine.protocol import ErrorInfo, ErrorResponse

T = TypeVar("T")
EVENT_END = b"\n\n"
DONE = b"data: [DONE]\n\n"
ERROR_EVENT = b'data: {"error"'
RETRIABLE = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Answers below 500 of which another engine may think otherwise; any other is about the request itself."""


@dataclass
class Answer:
    """A whole answer."""

    status: int
    content: bytes
    media_type: str
    retry_after: str | None = None

    @property
    def is_failure(self) -> bool:
        """Whether another engine is to be asked."""
        return self.status >= 500 or self.status in RETRIABLE

    @classmethod
    def of(cls, response: httpx.Response, content: bytes) -> Answer:
        """What came."""
        headers = response.headers
        return cls(response.status_code, content, headers.get("content-type", ""), headers.get("retry-after"))


class InstanceError(Exception):
    """An engine gave no answer.

    Attributes:
        status: what the client is told, where nobody else answers: 502, 503 or 504.
        reached: False where it is sure that the engine never saw the request.
        answer: what it did say, where it said anything.
    """

    def __init__(
        self, instance: Instance, said: str, status: HTTPStatus, reached: bool = True, answer: Answer | None = None
    ) -> None:
        super().__init__(f"the {instance.role} engine {instance.url} {said}")
        self.instance, self.status, self.reached, self.answer = instance, status, reached, answer

    def as_answer(self) -> Answer:
        """For the client: the engine's own words, or ours."""
        return self.answer or error_answer(str(self), self.status)


def error_answer(message: str, status: HTTPStatus) -> Answer:
    """An error in the API's form."""
    info = ErrorInfo(message=message, type=status.phrase.replace(" ", ""), code=status.value)
    body = ErrorResponse(error=info).model_dump_json().encode()
    retry = "1" if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS) else None
    return Answer(status.value, body, "application/json", retry)


class Exchange:
    """A request that is sent to an engine. `close` ends it, wherever it stands; the engine notices by its socket.

    Args:
        timeout_s: the longest that the engine may be silent.

    Raises, all methods but `close`:
        InstanceError: it is gone, silent, or speaks no HTTP.
    """

    def __init__(self, instance: Instance, path: str, content: bytes, headers: Mapping[str, str], timeout_s: float):
        self.instance, self.timeout_s = instance, timeout_s
        self._request = instance.client.build_request("POST", path, content=content, headers=headers)
        self._down = asyncio.ensure_future(instance.went_silent.wait())
        self._response: httpx.Response | None = None
        self._pieces: Any = None
        self._rest, self._ended = b"", False
        self._stack = ExitStack()
        self._stack.enter_context(instance.at_work())

    async def _wait(self, coming: Awaitable[T]) -> T:
        """What comes, unless the engine goes before, or is silent for too long."""
        work = asyncio.ensure_future(coming)
        try:
            await asyncio.wait({work, self._down}, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self.instance.mark_down(f"no connection: {error}", hangs=False)
            raise self._error("takes no connection", HTTPStatus.SERVICE_UNAVAILABLE, reached=False) from error
        except httpx.HTTPError as error:
            said = f"broke off: {error or type(error).__name__}"
            raise self._error(said, HTTPStatus.BAD_GATEWAY) from error
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})  # gather, cancelled again, would break the connection's closing off
        if self._down.done():
            raise self._error(f"is down: {self.instance.why}", HTTPStatus.SERVICE_UNAVAILABLE)
        raise self._error(f"was silent for {self.timeout_s:g} s", HTTPStatus.GATEWAY_TIMEOUT)

    def _error(self, said: str, status: HTTPStatus, reached: bool = True, answer: Answer | None = None) -> Exception:
        self.instance.num_failures += 1
        return InstanceError(self.instance, said, status, reached, answer)

    def _refuse_failure(self, answer: Answer) -> Answer:
        if answer.is_failure:
            said = f"answered {answer.status}: {answer.content[:200].decode(errors='replace')}"
            raise self._error(said, HTTPStatus.BAD_GATEWAY, answer=answer)
        return answer

    async def whole(self) -> Answer:
        """The whole answer; one that another engine may give otherwise is an error."""
        try:
            response = await self._wait(self.instance.client.send(self._request))
        finally:
            await self.close()
        return self._refuse_failure(Answer.of(response, response.content))

    async def start(self) -> Answer | None:
        """Wait for the first event of a stream. None: it is there; otherwise the engine has answered as a whole."""
        client = self.instance.client
        response = self._response = await self._wait(client.send(self._request, stream=True))
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            answer = Answer.of(response, await self._wait(response.aread()))
            await self.close()
            return self._refuse_failure(answer)
        self._pieces = response.aiter_raw()
        first = await self.next_events()
        if first.startswith(ERROR_EVENT):
            answer = Answer(500, first.partition(EVENT_END)[0].removeprefix(b"data: "), "application/json")
            raise self._error("ended the stream with an error before its first event", HTTPStatus.BAD_GATEWAY,
                              answer=answer)  # fmt: skip
        self._rest = first + self._rest
        return None

    async def next_events(self) -> bytes:
        """Whole events that have come meanwhile, at least one; b"" behind the last one, which has to be `[DONE]`."""
        while EVENT_END not in self._rest and not self._ended:
            try:
                self._rest += await self._wait(anext(self._pieces))
            except StopAsyncIteration:
                break
        whole, end, self._rest = self._rest.rpartition(EVENT_END)
        if not end and not self._ended:
            raise self._error("ended the stream before its end", HTTPStatus.BAD_GATEWAY)
        self._ended = (whole + end).endswith(DONE)
        return whole + end

    async def close(self) -> None:
        """The engine's connection is closed, unless its answer was read to the end."""
        self._down.cancel()
        self._stack.close()
        if self._response is not None:
            await self._response.aclose()
