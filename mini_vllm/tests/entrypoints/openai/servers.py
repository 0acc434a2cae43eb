"""A server for tests: on a free port, in a thread with an event loop of its own."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs the extra serve")

from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.entrypoints.cli.serve import parse_serve_args
from mini_vllm.entrypoints.launcher import serve_http
from mini_vllm.entrypoints.openai.api_server import _uvicorn_options, build_app, init_app_state, setup_server

WAIT_S = 590
KEEP_ALIVE_S = 600
"""By default a server ends idle connections after 5 s: in the very moment in which a client that was late uses one."""


class Server:
    """`with Server("models/pocket", "--api-key", "k") as server:`; the engine's core runs in this process."""

    def __init__(self, *flags, engine=None, send_buffer=None):
        self.send_buffer = send_buffer
        self.args = parse_serve_args([*flags, "--port", "0", "--host", "127.0.0.1", "--uvicorn-log-level", "warning"])
        self._given = engine
        self._ready = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def _run(self):
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _main(self):
        self.loop = asyncio.get_running_loop()
        self.engine = self._given() if self._given else AsyncLLM.from_engine_args(EngineArgs.from_cli_args(self.args))
        try:
            self.url, sock = setup_server(self.args)
            if self.send_buffer:  # what it accepts has the same
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer)
            self.app = build_app(self.args)
            init_app_state(self.engine, self.app.state, self.args)
            await self.app.state.openai_serving_models.init_static_loras()
            options = {**_uvicorn_options(self.args), "timeout_keep_alive": KEEP_ALIVE_S}
            serving = asyncio.ensure_future(serve_http(self.app, sock, self.args.shutdown_timeout, **options))
            while not (serving.done() or getattr(getattr(self.app.state, "server", None), "started", False)):
                await asyncio.sleep(0.005)
            self._ready.set()
            await serving
            sock.close()
        finally:
            self.engine.shutdown()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(WAIT_S), "the server did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_):
        with contextlib.suppress(AttributeError):
            self.app.state.server.should_exit = True
        self.join()

    def join(self):
        """Wait until the server has ended."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def call(self, coroutine):
        """Run it in the server's loop and wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def client(self, **kwargs):
        import httpx

        return httpx.Client(base_url=self.url, timeout=WAIT_S, **kwargs)

    def openai(self, **kwargs):
        openai = pytest.importorskip("openai", reason="needs the extra serve")
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **kwargs})

    def wait_until_idle(self):
        """Until no request is followed and no block is held."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            scheduler = self.engine.scheduler
            if not self.engine.output_processor.request_states and not scheduler.requests:
                return
            time.sleep(0.002)
        raise AssertionError("requests are left")


@contextlib.contextmanager
def unhurried(server):
    """Each step takes 50 ms: what is to be running when a test looks runs for a minute, however late that is."""
    core = server.engine.engine_core
    step = core.step_fn

    def slow():
        time.sleep(0.05)
        return step()

    core.step_fn = slow
    try:
        yield
    finally:
        core.step_fn = step


def events(response):
    """The events of a stream: parsed JSON, and "[DONE]"."""
    import json

    lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines), lines
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]
