"""A server that answers as an OpenAI-compatible one does, out of the standard library: tokens are words.

As a program, `--port PORT`, it stands in for `mini-vllm serve` in tests of the sweep.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="fake"} 3.0
vllm:spec_decode_num_drafts_total{engine="0"} DRAFTS
vllm:spec_decode_num_draft_tokens_total{engine="0"} TOKENS
vllm:spec_decode_num_accepted_tokens_total{engine="0"} ACCEPTED
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} ACCEPTED
"""


class FakeServer:
    """slots: requests that are answered at a time; others wait. delay: seconds a token. cut: end streams early."""

    def __init__(self, slots: int = 1000, delay: float = 0.0, cut: bool = False, status: int = 200) -> None:
        self.slots, self.delay, self.cut, self.status = slots, delay, cut, status
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.running = self.most_running = 0
        self.port = 0

    async def start(self, port: int = 0) -> asyncio.AbstractServer:
        """Listen; the port is known then."""
        self.gate = asyncio.Semaphore(self.slots)
        server = await asyncio.start_server(self._connection, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path = first.split()[1]
                self.paths.append(path)
                self.headers.append(headers)
                await self._answer(path, json.loads(body) if body else {}, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            return self._whole(writer, json.dumps({"data": [{"id": "fake", "root": "toy"}]}))
        if path == "/metrics":
            done = len(self.bodies)
            counts = {"DRAFTS": done, "TOKENS": 2 * done, "ACCEPTED": done}
            text = METRICS
            for name, value in counts.items():
                text = text.replace(name, str(float(value)))
            return self._whole(writer, text)
        if path.endswith("embeddings"):
            self.bodies.append(body)
            return self._whole(writer, json.dumps({"data": [], "usage": {"prompt_tokens": 5}}))
        if not body or self.status != 200:
            return self._whole(writer, '{"error": "no"}', self.status if body else 200)
        self.bodies.append(body)
        async with self.gate:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            await self._stream(path, body, writer)
            self.running -= 1

    def _whole(self, writer: asyncio.StreamWriter, text: str, status: int = 200) -> None:
        data = text.encode()
        writer.write(b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n\r\n" % (status, len(data)) + data)

    async def _stream(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        count = body.get("max_tokens") or body.get("max_completion_tokens") or 1
        for i in range(count // 2 if self.cut else count):
            text = f"é{i} "
            choice = {"delta": {"content": text}} if "chat" in path else {"text": text}
            self._event(writer, json.dumps({"choices": [{"index": 0, **choice}]}, ensure_ascii=False))
            await writer.drain()
            await asyncio.sleep(self.delay)
        if not self.cut:
            usage = {"prompt_tokens": 11, "completion_tokens": count}
            self._event(writer, json.dumps({"choices": [], "usage": usage}))
            self._event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _event(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        half = len(data) // 2  # so that events come in pieces, now and then within a character
        for piece in (data[:half], data[half:]):
            writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")


@contextmanager
def serving(**settings: Any) -> Iterator[FakeServer]:
    """A server in a thread while the block runs."""
    fake, ready = FakeServer(**settings), threading.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        server = await fake.start()
        ready.set()
        with suppress(asyncio.CancelledError):
            await server.serve_forever()

    task: list[asyncio.Task[None]] = []

    def main() -> None:
        task.append(loop.create_task(run()))
        loop.run_until_complete(task[0])

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    assert ready.wait(120)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(task[0].cancel)
        thread.join(120)


if __name__ == "__main__":

    async def alone() -> None:
        server = await FakeServer(slots=4, delay=0.002).start(int(sys.argv[-1]))
        await server.serve_forever()

    asyncio.run(alone())
