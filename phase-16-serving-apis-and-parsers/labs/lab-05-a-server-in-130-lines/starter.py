"""Lab 16-05: a server is small once it is clear who may touch the engine.

A listener and its connections come from `wire.py`; their docstrings say what they can do. `serve_blocking` is
the server that everybody writes first; `serve` is the one that you keep.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mini_vllm import LLMEngine, SamplingParams


class BadRequest(ValueError):
    """A request that is refused before the engine hears of it. `param` is the field's name, or None. Given."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def error_body(message: str, code: int, param: str | None = None) -> bytes:
    """An error as OpenAI's clients expect it. Given."""
    name = {400: "BadRequestError", 404: "NotFoundError"}[code]
    return json.dumps({"error": {"message": message, "type": name, "param": param, "code": code}}).encode()


def completion_body(request_id: str, text: str, finish_reason: str | None) -> bytes:
    """A completion, or a piece of one. Given."""
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    return json.dumps({"id": request_id, "object": "text_completion", "choices": [choice]}).encode()


@dataclass
class Server:
    """What a server leaves in its caller's hands. `close` calls `stop` before it waits for the threads. Given."""

    listener: Any
    threads: list[threading.Thread]
    stop: Callable[[], None] = field(default=lambda: None)

    def close(self) -> None:
        """Take no more connections, finish or end what runs, and end the threads."""
        self.listener.close()
        self.stop()
        for thread in self.threads:
            thread.join(10)
            if thread.is_alive():
                raise RuntimeError(f"the thread {thread.name} does not end")


def predicted_steps() -> tuple[int, int]:
    """Your prediction, made before you run anything. Eight clients come at the same moment, each with a prompt of 20
    tokens, and each wants 100. How many steps does the engine make until all have their answers: with
    `serve_blocking`, and with `serve`?
    """
    raise NotImplementedError("your prediction: steps of the engine with the blocking server, and with the other")


def parse_request(body: bytes) -> tuple[str, SamplingParams, bool]:
    """The body of `POST /v1/completions`: prompt, parameters, whether to stream.

    Fields: `prompt` (a string that is not empty), `max_tokens` (16), `temperature` (1.0), `stream` (false), `model`
    (ignored). A bool is no number.

    Raises:
        BadRequest: "the body is not JSON"; "the body must be a JSON object, got list"; "unknown field 'max_tokenz'";
            "prompt must be a string that is not empty, got 5"; "max_tokens must be a whole number of at least 1, got
            True"; "temperature must be a number, got 'hot'"; "stream must be true or false, got 'yes'". What
            `SamplingParams` itself refuses (a temperature of −1) is a BadRequest with its message. `param` is the name
            of the field. Whatever the bytes are, nothing but BadRequest is raised.
    """
    raise NotImplementedError("prompt, parameters and whether to stream, or what is wrong with the body")


def serve_blocking(engine: LLMEngine, listener: Any) -> Server:
    """The server that everybody writes first: one thread, which takes a connection, answers it, and takes the next.

    Same routes and answers as `serve`.
    """
    raise NotImplementedError("a server that answers one connection after the other")


def serve(engine: LLMEngine, listener: Any) -> Server:
    """A server for many clients at once, in front of one engine.

    `POST /v1/completions` answers with one JSON body, or with `stream` as server-sent events: one for each output,
    exactly one of them with a finish reason, then `data: [DONE]`. `GET /health` answers 200. Anything else is a 404.
    What is wrong with a request is a 400 with `error_body`, what the engine itself refuses (a prompt that is too long)
    with its message.

    What must hold: all calls of the engine come from one thread. No client waits for another: neither for her answer,
    nor for her reading. A client who leaves ends her request, and her blocks are free. Without work nothing runs. A bad
    request harms nobody. Nothing is kept of a request that is over. Behind `close` no thread is left.
    """
    raise NotImplementedError("a server for many clients at once, in front of one engine")
