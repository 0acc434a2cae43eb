"""One of several API servers: a process that serves the app on a socket it was given, in front of a shared core.

Upstream twins: `run_api_server_worker_proc` in `vllm/v1/utils.py`, `run_server_worker` in
`vllm/entrypoints/openai/api_server.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
from argparse import Namespace
from functools import partial
from typing import Any, BinaryIO

from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.exceptions import EngineDeadError
from mini_vllm.engine.shared_core import AnyCore, SharedCore, SharedCores
from mini_vllm.engine.utils import watch_front_end
from mini_vllm.entrypoints.cli.serve import run_in_loop, set_up_logging
from mini_vllm.entrypoints.openai.api_server import import_parser_plugins, serve_engine
from mini_vllm.logger import init_logger
from mini_vllm.metrics.multiprocess import FLUSH_S, MultiprocessMetrics

logger = init_logger(__name__)


def run_api_server_worker_proc(stream: BinaryIO) -> None:
    """The process from start to end; its exit code says how that was.

    Upstream: upstream/vllm/v1/utils.py:460 — `run_api_server_worker_proc`.
    """
    parent, index, num_servers, shared, listen_address, descriptor, report, args = pickle.load(stream)
    set_up_logging(args.uvicorn_log_level)
    watch_front_end(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))

    import_parser_plugins(args)
    try:
        core = _shared_core(shared, report, index, num_servers)
        engine = AsyncLLM.from_engine_args(
            EngineArgs.from_cli_args(args), enable_multiprocessing=True, shared_core=core
        )
    except Exception as error:  # the process that starts the core meets the same, and says it in full
        logger.debug("ApiServer_%d ends: %s", index, error)
        sys.exit(1)
    try:
        sock = socket.socket(fileno=descriptor)
        run_in_loop(run_server_worker(listen_address, sock, args, engine, index))
    finally:
        engine.shutdown()


def _shared_core(shared: tuple[list[bytes], Any, bool, str], report: int, index: int, num_servers: int) -> AnyCore:
    """The core, or all replicas; once all of their sockets are bound, `report` is told where."""
    identities, coordinator, in_lockstep, host = shared
    bound: dict[int, tuple[str, ...]] = {}
    lock = threading.Lock()

    def tell(rank: int, *addresses: str) -> None:
        with lock:
            bound[rank] = addresses
            if len(bound) == len(identities):
                with os.fdopen(report, "wb") as pipe:
                    pickle.dump([bound[each] for each in range(len(bound))], pipe)

    links = [SharedCore(identity, partial(tell, rank), host) for rank, identity in enumerate(identities)]
    return SharedCores(links, coordinator, index, num_servers, in_lockstep) if coordinator else links[0]


async def run_server_worker(
    listen_address: str, sock: socket.socket, args: Namespace, engine: AsyncLLM, index: int
) -> None:
    """Serve until a signal comes. Raises SystemExit(1) where the core has died.

    Upstream: upstream/vllm/entrypoints/openai/api_server.py:681 — `run_server_worker`.
    """
    metrics = MultiprocessMetrics(os.environ["PROMETHEUS_MULTIPROC_DIR"], engine)

    def prepare(app: Any) -> None:
        metrics.http = app.state.http_metrics
        app.state.multiprocess_metrics = metrics

    flushing = asyncio.ensure_future(_flush_for_ever(metrics))
    try:
        with contextlib.suppress(EngineDeadError):
            await serve_engine(engine, args, f"{listen_address} (ApiServer_{index})", sock, prepare)
    finally:
        flushing.cancel()
        metrics.flush()
    if engine.errored:
        sys.exit(1)


async def _flush_for_ever(metrics: MultiprocessMetrics) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        metrics.flush()
