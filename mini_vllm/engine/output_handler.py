"""The task of an `AsyncLLM` that reads from the core and turns tokens into text. Upstream twin: a function inside
`AsyncLLM._run_output_handler`, in `vllm/v1/engine/async_llm.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from mini_vllm.engine.core_client import EngineCoreClient
from mini_vllm.engine.exceptions import EngineDeadError
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.utils.system_utils import Owner

OUTPUT_PROC_CHUNK_SIZE = 32
"""Outputs turned into text before other tasks get their turn (upstream: `VLLM_V1_OUTPUT_PROC_CHUNK_SIZE`, 128): with
twenty log-probabilities a token, 128 of them are a sixth of a second."""


class Death:
    """Shared by an `AsyncLLM` and its output handler: why the core is gone, or None. A forked child has neither the
    core's thread nor the event loop.

    client: is asked whenever somebody wants to know, so that a core that dies while nothing runs is noticed.
    """

    def __init__(self, client: EngineCoreClient | None = None) -> None:
        self.owner, self._client = Owner(), client
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """The first reason."""
        if self._error is None and (refusal := self.owner.refusal) is not None:
            self._error = EngineDeadError(refusal)
        if self._error is None and self._client is not None:
            self._error = self._client.find_death()
        return self._error

    @error.setter
    def error(self, error: BaseException) -> None:
        self._error = error

    def check(self) -> None:
        """Raises the reason, where there is one."""
        if self.error is not None:
            raise self.error


def start_handler(client: EngineCoreClient, processor: OutputProcessor, death: Death) -> asyncio.Task[None] | None:
    """The output handler as a task of the event loop that runs here; None where none does yet."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop.create_task(handle_outputs(client, processor, death), name="output_handler")


async def handle_outputs(client: EngineCoreClient, processor: OutputProcessor, death: Death) -> None:
    """The output handler: to its collector with each output, in chunks, so that other tasks get their turn."""
    replicas = client.replica_metrics
    try:
        while True:
            outputs = await client.get_output_async()
            process: Callable[..., Any] = processor.process_outputs
            if replicas is not None:
                process = partial(replicas.process_outputs, processor, outputs.engine_index)
            for start in range(0, len(outputs.outputs), OUTPUT_PROC_CHUNK_SIZE):
                if start:
                    await asyncio.sleep(0)
                chunk = outputs.outputs[start : start + OUTPUT_PROC_CHUNK_SIZE]
                chunk = client.drop_stale(chunk, outputs.num_inputs)
                _, reqs_to_abort = process(chunk, outputs.timestamp)
                if reqs_to_abort:  # a stop string is known only here
                    await client.abort_requests_async(reqs_to_abort)
    except BaseException as error:
        death.error = reason = death.error or _as_death(error)
        processor.propagate_error(reason)
        if isinstance(error, asyncio.CancelledError):
            raise


def let_end(handler: asyncio.Task[None], processor: OutputProcessor, seconds: float) -> None:
    """Wait until no request is unfinished, or for so long. Requests end in the handler's loop, so that nobody waits
    in it.

    Upstream: upstream/vllm/v1/engine/core.py:1264 — "shutdown_timeout = self.vllm_config.shutdown_timeout".
    """
    loop = handler.get_loop()
    with contextlib.suppress(RuntimeError):  # no loop runs in this thread
        if asyncio.get_running_loop() is loop:
            return
    deadline = time.monotonic() + seconds
    while processor.get_num_unfinished_requests() and loop.is_running() and time.monotonic() < deadline:
        time.sleep(0.01)


def _as_death(error: BaseException) -> BaseException:
    if isinstance(error, EngineDeadError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return EngineDeadError("the event loop to which it belonged has ended")
    (dead := EngineDeadError(f"{type(error).__name__}: {error}")).__cause__ = error
    return dead
