"""A stretch of the network that breaks on demand: between the proxy and an engine, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

KINDS = ("cut", "dead", "hang")
"""All connections break; they break, and new ones are refused; nothing moves any more, and nobody is told."""


class Relay:
    """Passes bytes on to an engine, until `arm` says otherwise. It looks as a killed or a stopped process does from
    outside: sockets that reset, a port that refuses, or silence."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = parts.hostname, parts.port
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="relay", daemon=True).start()
        self._writers: set[asyncio.StreamWriter] = set()
        self._moving: asyncio.Event
        self._kind, self._left = "", 0
        self.struck = threading.Event()
        self._port = 0
        self._call(self._listen())
        self.url = f"http://127.0.0.1:{self._port}"

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _listen(self) -> None:
        self._moving = asyncio.Event()
        self._moving.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there[1]}
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        self._writers -= {writer, there[1]}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._moving.wait()
                if self._kind:
                    whole, self._left = data, self._left - len(data)
                    if self._left < 0:
                        data = whole[: self._left]
                        writer.write(data)
                        await self._strike()
                        await self._moving.wait()
                        data = whole[len(data) :]
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()

    async def _strike(self) -> None:
        kind, self._kind = self._kind, ""
        if kind == "hang":
            self._moving.clear()
        if kind == "dead":
            self._server.close()
        if kind in ("cut", "dead"):
            for each in list(self._writers):
                each.transport.abort()
        self.struck.set()

    def arm(self, kind: str, after_bytes: int) -> None:
        """Strike once so many bytes have passed, in either direction: at any stage of a request."""

        async def main() -> None:
            self.struck.clear()
            self._kind, self._left = kind, after_bytes

        self._call(main())

    def restore(self) -> bool:
        """As it was; False where nothing had struck."""

        async def main() -> None:
            self._kind = ""
            self._moving.set()
            if not self._server.is_serving():
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

        struck = self.struck.is_set()
        self._call(main())
        return struck

    def close(self) -> None:
        """End all of it."""

        async def main() -> None:
            self._server.close()
            for each in list(self._writers):
                each.transport.abort()

        self._call(main())
        self._loop.call_soon_threadsafe(self._loop.stop)
