"""Lab 16-05: a server is small once it is clear who may touch the engine.

A listener and its connections come from `wire.py`; their docstrings say what they can do. `serve_blocking` is
the server that everybody writes first; `serve` is the one that you keep.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mini_vllm import LLMEngine, RequestOutput, RequestOutputKind, SamplingParams


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
    return 800, 103


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
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRequest(f"the body must be a JSON object, got {type(fields).__name__}")
    known = {"prompt": None, "max_tokens": 16, "temperature": 1.0, "stream": False, "model": None}
    for name in fields:
        if name not in known:
            raise BadRequest(f"unknown field {name!r}", name)
    prompt, max_tokens, temperature, stream, _ = (fields.get(name, default) for name, default in known.items())
    if not isinstance(prompt, str) or not prompt:
        raise BadRequest(f"prompt must be a string that is not empty, got {prompt!r}", "prompt")
    if type(max_tokens) is not int or max_tokens < 1:
        raise BadRequest(f"max_tokens must be a whole number of at least 1, got {max_tokens!r}", "max_tokens")
    if type(temperature) not in (int, float):
        raise BadRequest(f"temperature must be a number, got {temperature!r}", "temperature")
    if type(stream) is not bool:
        raise BadRequest(f"stream must be true or false, got {stream!r}", "stream")
    try:
        return prompt, SamplingParams(max_tokens=max_tokens, temperature=temperature), stream
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(str(error), "max_tokens" if "max_tokens" in str(error) else "temperature") from None


def serve_blocking(engine: LLMEngine, listener: Any) -> Server:
    """The server that everybody writes first: one thread, which takes a connection, answers it, and takes the next.

    Same routes and answers as `serve`.
    """
    count = itertools.count()

    def run(connection: Any, prompt: str, params: SamplingParams) -> Iterator[_Piece]:
        request_id = f"cmpl-{next(count)}"
        engine.add_request(request_id, prompt, params, output_kind=RequestOutputKind.DELTA)
        try:
            while engine.has_unfinished_requests():
                yield from map(_Piece.of, engine.step())
        finally:
            engine.abort_request(request_id)

    def loop() -> None:
        while (connection := listener.accept()) is not None:
            _answer(connection, run)

    thread = threading.Thread(target=loop, name="blocking", daemon=True)
    thread.start()
    return Server(listener, [thread])


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
    front = _Front(engine, listener)
    return Server(listener, front.threads, front.stop)


class _Front:
    """A thread that owns the engine, one that accepts, and one for each connection."""

    def __init__(self, engine: LLMEngine, listener: Any) -> None:
        self.engine, self.listener = engine, listener
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.count = itertools.count()
        self.open: set[Any] = set()
        self.stopped = False
        self.threads: list[threading.Thread] = []
        self.start(self.own_the_engine)
        self.start(self.accept)

    def start(self, target: Callable[..., None], *args: Any) -> None:
        self.threads[2:] = [each for each in self.threads[2:] if each.is_alive()]
        self.threads.append(threading.Thread(target=target, args=args, daemon=True))
        self.threads[-1].start()

    def accept(self) -> None:
        while (connection := self.listener.accept()) is not None:
            self.open.add(connection)
            if self.stopped:
                connection.close()
            self.start(self.answer, connection)

    def answer(self, connection: Any) -> None:
        try:
            _answer(connection, self.run)
        finally:
            self.open.discard(connection)

    def stop(self) -> None:
        self.stopped = True
        self.inbox.put(None)
        for connection in list(self.open):
            connection.close()

    def run(self, connection: Any, prompt: str, params: SamplingParams) -> Iterator[_Piece]:
        """The pieces of an answer, for the thread of a connection; closing the generator ends the request."""
        mailbox: queue.Queue[Any] = queue.Queue()
        request_id = f"cmpl-{next(self.count)}"
        self.inbox.put((request_id, mailbox, prompt, params))
        try:
            piece = _Piece(request_id, "", None)
            while piece.finish_reason is None:
                try:
                    piece = mailbox.get(timeout=0.05)
                except queue.Empty:
                    if connection.gone:
                        raise ConnectionError("the client has left") from None
                    continue
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.inbox.put((request_id, None, None, None))

    def own_the_engine(self) -> None:
        """The one thread that calls the engine. It waits for its inbox only while there is nothing to compute."""
        engine, mailboxes = self.engine, dict[str, Any]()
        while True:
            while not self.inbox.empty() or not mailboxes:
                message = self.inbox.get()
                if message is None:
                    engine.abort_request(list(mailboxes))
                    return
                self.take(mailboxes, *message)
            for output in engine.step():
                piece = _Piece.of(output)
                if output.request_id in mailboxes:
                    mailboxes[output.request_id].put(piece)
                if piece.finish_reason is not None:
                    mailboxes.pop(output.request_id, None)

    def take(self, mailboxes: dict[str, Any], request_id: str, mailbox: Any, prompt: Any, params: Any) -> None:
        """A message: a new request, or the end of one."""
        if mailbox is None:
            if mailboxes.pop(request_id, None) is not None:
                self.engine.abort_request(request_id)
            return
        try:
            self.engine.add_request(request_id, prompt, params, output_kind=RequestOutputKind.DELTA)
            mailboxes[request_id] = mailbox
        except (ValueError, TypeError) as error:
            mailbox.put(error)


@dataclass
class _Piece:
    request_id: str
    text: str
    finish_reason: str | None

    @staticmethod
    def of(output: RequestOutput) -> _Piece:
        return _Piece(output.request_id, output.outputs[0].text, output.outputs[0].finish_reason)


def _answer(connection: Any, run: Callable[..., Iterator[_Piece]]) -> None:
    """One connection from its request to its end."""
    try:
        request = connection.read_request()
        if (request.method, request.path) == ("GET", "/health"):
            connection.respond(200, "text/plain", b"")
        elif (request.method, request.path) == ("POST", "/v1/completions"):
            prompt, params, stream = parse_request(request.body)
            _complete(connection, run(connection, prompt, params), stream)
        else:
            body = error_body(f"there is no {request.method} {request.path}", 404)
            connection.respond(404, "application/json", body)
    except (ValueError, TypeError) as error:
        with contextlib.suppress(ConnectionError):
            connection.respond(400, "application/json", error_body(str(error), 400, getattr(error, "param", None)))
    except ConnectionError:
        pass
    finally:
        connection.close()


def _complete(connection: Any, pieces: Iterator[_Piece], stream: bool) -> None:
    """Send the pieces as they come, or all of them at once."""
    text, started = "", False
    with contextlib.closing(pieces):  # type: ignore[type-var]
        for piece in pieces:
            if connection.gone:
                raise ConnectionError("the client has left")
            text += piece.text
            if stream and not started:
                connection.start(200, "text/event-stream")
                started = True
            if stream:
                body = completion_body(piece.request_id, piece.text, piece.finish_reason)
                connection.send(b"data: " + body + b"\n\n")
    if stream:
        connection.send(b"data: [DONE]\n\n")
    else:
        connection.respond(200, "application/json", completion_body(piece.request_id, text, piece.finish_reason))
