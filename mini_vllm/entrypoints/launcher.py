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
LAST_WORDS_S = 5.0
"""For the answers of requests that were aborted."""


async def serve_http(app: FastAPI, sock: socket.socket | None, shutdown_timeout: float, **uvicorn_kwargs: Any) -> None:
    """Serve until SIGINT or SIGTERM comes, or the engine dies, which raises why: the process is to say so by its code.

    Then no connection is taken any more, and the requests that run have `shutdown_timeout` seconds to end; what is
    left is aborted, and its clients hear so. A second signal moves that deadline to now.

    Upstream: upstream/vllm/entrypoints/launcher.py:26 — `serve_http`, which ends the engine first.
    """
    config = uvicorn.Config(app, timeout_graceful_shutdown=round(shutdown_timeout + LAST_WORDS_S), **uvicorn_kwargs)
    config.load()
    server = _Server(config, app.state.engine_client, shutdown_timeout)
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
    if server.engine_has_ended_it:
        raise app.state.engine_client.dead_error


class _Server(uvicorn.Server):
    """Drains, then aborts. Its own signal handlers stay away: `serve_http` installs others."""

    def __init__(self, config: uvicorn.Config, engine: Any, shutdown_timeout: float) -> None:
        super().__init__(config)
        self.engine, self.shutdown_timeout = engine, shutdown_timeout
        self._hurry = asyncio.Event()
        self.engine_has_ended_it = False

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Nothing to do."""
        yield

    def end(self) -> None:
        """A signal: drain. The second one: abort now, and wait for the last words alone."""
        if self.should_exit:
            self._hurry.set()
            asyncio.get_running_loop().call_later(LAST_WORDS_S, setattr, self, "force_exit", True)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; at the deadline the engine's requests are aborted."""
        deadline = asyncio.create_task(self._abort_at_the_deadline())
        try:
            await super().shutdown(sockets)
        finally:
            deadline.cancel()

    async def _abort_at_the_deadline(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self.shutdown_timeout)
        while not self.engine.errored:
            left = list(self.engine.output_processor.request_states)
            if left:
                logger.info("aborting %d requests", len(left))
                await self.engine.abort(left)
            await asyncio.sleep(0.05)


async def watchdog_loop(server: _Server, engine: Any) -> None:
    """A stream that the engine's death ends raises nothing that the server would see; nor does a death while idle.

    Upstream: upstream/vllm/entrypoints/launcher.py:144 — `watchdog_loop`.
    """
    while True:
        await asyncio.sleep(WATCHDOG_TIME_S)
        terminate_if_errored(server, engine)


def terminate_if_errored(server: _Server | None, engine: Any) -> None:
    """End the server where the engine is gone, and say why.

    Upstream: upstream/vllm/entrypoints/launcher.py:156 — `terminate_if_errored`.
    """
    if server is not None and engine.errored and not server.should_exit:
        logger.error("the engine is gone, so the server ends: %s", engine.dead_error)
        server.should_exit = server.engine_has_ended_it = True
