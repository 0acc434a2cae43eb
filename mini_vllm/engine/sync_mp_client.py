"""`LLMEngine`'s client of a core in a process of its own.

Upstream twin: upstream/vllm/v1/engine/core_client.py:748 — `SyncMPClient`.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from mini_vllm.engine import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
from mini_vllm.engine.mp_client import PING, SILENCE_S, MPClient
from mini_vllm.engine.utils import CoreSetup


class SyncMPClient(MPClient):
    """Everything happens in the caller's thread; requests leave together when the next outputs are asked for,
    so that a batch is planned as one, as in process.

    Upstream's sends at once, and receives in a thread.
    """

    def __init__(self, setup: CoreSetup) -> None:
        self._unsent: list[bytes] = []
        self._backlog: deque[EngineCoreOutputs] = deque()
        super().__init__(setup)

    def _flush(self) -> None:
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._send(EngineCoreRequestType.ADD, *unsent)
            self._aborted.num_sent += 1

    def _receive(self, seconds: float) -> EngineCoreOutputs | None:
        if self._output.poll(int(seconds * 1000)):
            return self._take(self._output.recv_multipart())
        self._on_silence(seconds)
        return None

    def get_output(self) -> EngineCoreOutputs:
        """Wait for a step that has something to say."""
        self.ensure_alive()
        self._flush()
        while True:
            if self._backlog:
                return self.hand_on(self._backlog.popleft())
            if not self._in_flight:
                return EngineCoreOutputs()
            outputs = self._receive(SILENCE_S)
            if outputs is not None:
                return self.hand_on(outputs)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Keep it until outputs are asked for."""
        self._unsent.append(self._encode_request(request))

    def abort_requests(self, request_ids: list[str]) -> None:
        """Send an abort, if the core lives."""
        known = [request_id for request_id in request_ids if request_id in self._in_flight]
        if not known or self.dead_error is not None:
            return
        self._flush()
        self._send(EngineCoreRequestType.ABORT, self._encoder.encode(known))
        self._aborted.note(known)
        self._in_flight.difference_update(known)

    def call_utility(self, method: str, *args: Any) -> Any:
        """Send the call and wait; outputs that come meanwhile are kept."""
        self.ensure_alive()
        self._flush()
        return self._wait(self._send_utility(method, args), float("inf"))

    def check_fits(self, num_prompt_tokens: int, max_tokens: int | None) -> None:
        """As everywhere; what is to leave together stays."""
        if not self.ready.fits_any:
            self._wait(self._send_utility("check_fits", (num_prompt_tokens, max_tokens)), float("inf"))

    def _wait(self, future: Future[Any], timeout: float) -> Any:
        end = time.monotonic() + timeout
        while not future.done():
            left = end - time.monotonic()
            if left <= 0:
                raise self._no_sign_of_life(timeout)
            outputs = self._receive(min(SILENCE_S, left))
            if outputs is not None:
                self._backlog.append(outputs)
        return future.result()

    def check_health(self, timeout: float) -> None:
        """Ask for a sign of life."""
        self._wait(self._send_utility(PING, ()), timeout)
