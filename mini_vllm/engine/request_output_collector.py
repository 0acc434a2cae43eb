"""From the output handler of `AsyncLLM` to the task that consumes a request."""

from __future__ import annotations

import asyncio

from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind


class RequestOutputCollector:
    """Hands the outputs of one request to the task that consumes them. It holds one output: where the producer gets
    ahead, later ones are joined to it, so that a slow consumer costs no memory and gets everything at once.

    Upstream: upstream/vllm/v1/engine/output_processor.py:45 — `RequestOutputCollector`.
    """

    def __init__(self, output_kind: RequestOutputKind, request_id: str) -> None:
        self.aggregate = output_kind is RequestOutputKind.DELTA
        self.request_id = request_id
        self.output: RequestOutput | BaseException | None = None
        self.ready = asyncio.Event()

    def put(self, output: RequestOutput | BaseException) -> None:
        """Never waits. An exception takes the place of what was there."""
        if isinstance(self.output, RequestOutput) and isinstance(output, RequestOutput):
            self.output.add(output, self.aggregate)
        elif not isinstance(self.output, BaseException):
            self.output = output
            self.ready.set()

    async def get(self) -> RequestOutput:
        """Wait for an output. Raises the exception that was put instead."""
        while self.output is None:
            await self.ready.wait()
        output = self.get_nowait()
        assert output is not None
        return output

    def get_nowait(self) -> RequestOutput | None:
        """The output if there is one."""
        output = self.output
        if isinstance(output, BaseException):
            raise output
        self.output = None
        self.ready.clear()
        return output
