"""A server around the app: started, watched, and ended without cutting anybody off. Upstream twin:
`vllm/entrypoints/launcher.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from mini_vllm.logger import init_logger

logger = init_logger(__name__)
WATCHDOG_TIME_S = 5.0


async def serve_http(app: FastAPI, sock: socket.socket | None, shutdown_timeout: float, **uvicorn_kwargs: Any) -> None:
    """Serve until SIGINT or SIGTERM comes, or the engine dies.

    Then no connection is taken any more, and the requests that run have `shutdown_timeout` seconds to end; what is
    left is aborted. A second signal ends it at once.

    Upstream: upstream/vllm/entrypoints/launcher.py:26 — `serve_http`, which ends the engine first.
    """
    headers = uvicorn_kwargs.pop("h11_max_header_count")
    config = uvicorn.Config(app, timeout_graceful_shutdown=max(0, round(shutdown_timeout)), **uvicorn_kwargs)
    config.h11_max_header_count = headers  # type: ignore[attr-defined]
    config.load()
    server = _Server(config)
    app.state.server = server
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread: nobody sends it signals
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.end)
    watchdog = loop.create_task(watchdog_loop(server, app.state.engine_client))
    try:
        await server.serve(sockets=[sock] if sock else None)
    finally:
        watchdog.cancel()


class _Server(uvicorn.Server):
    """Its own signal handlers stay away: `serve_http` installs them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    def end(self) -> None:
        """A signal: drain; the second one does not wait."""
        self.force_exit = self.should_exit
        self.should_exit = True


async def watchdog_loop(server: uvicorn.Server, engine: Any) -> None:
    """A stream that the engine's death ends raises nothing that the server would see.

    Upstream: upstream/vllm/entrypoints/launcher.py:144 — `watchdog_loop`.
    """
    while True:
        await asyncio.sleep(WATCHDOG_TIME_S)
        terminate_if_errored(server, engine)


def terminate_if_errored(server: uvicorn.Server | None, engine: Any) -> None:
    """End the server where the engine is gone.

    Upstream: upstream/vllm/entrypoints/launcher.py:156 — `terminate_if_errored`.
    """
    if server is not None and engine.errored:
        server.should_exit = True
