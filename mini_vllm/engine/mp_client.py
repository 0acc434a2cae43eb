"""What the clients of a core in a process of its own share.

Upstream twin: upstream/vllm/v1/engine/core_client.py:461 — `MPClient`.

    front end                                              core (`core_proc.py`)
    ROUTER, bound   ── add, abort, utility calls ──────▶   DEALER
    PULL, bound     ◀── outputs, answers, last words ───   PUSH

Both sockets are tcp on 127.0.0.1, or on the address of this node where Ray places the core, at ports that the system
picks. A message names the core's identity, which nobody else knows; others are passed over.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from mini_vllm.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    EngineCoreRequestType,
    UtilityOutput,
)
from mini_vllm.engine.aborted_requests import AbortedRequests
from mini_vllm.engine.core_client import EngineCoreClient
from mini_vllm.engine.exceptions import CoreTraceback, EngineDeadError, make_error
from mini_vllm.engine.shared_core import SharedCore
from mini_vllm.engine.utils import CoreEngineProcManager, CoreSetup, EngineZmqAddresses, own_words_come
from mini_vllm.multimodal.cache import MultiModalProcessorSenderCache, mm_cache_size
from mini_vllm.serial_utils import MsgpackDecoder, MsgpackEncoder, require_library
from mini_vllm.utils.system_utils import Owner

DEAD, READY, PING = b"ENGINE_CORE_DEAD", b"READY", "ping"
SILENCE_S = 1.0  # without a word while one is due: the core is asked for a sign of life


def _seconds(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal() or not int(value):
        raise ValueError(f"{name} must be a whole number of seconds, at least 1, got {value!r}")
    return int(value)


@dataclass
class BackgroundResources:
    """What has to be closed, apart from the client so that a finalizer can hold it.

    Upstream: upstream/vllm/v1/engine/core_client.py:369 — `BackgroundResources`.
    """

    context: Any
    sockets: list[Any] = field(default_factory=list)
    manager: CoreEngineProcManager | None = None
    owner: Owner = field(default_factory=Owner)

    def __call__(self) -> None:
        if self.owner.refusal is not None:
            return  # a fork has copies of all this
        if self.manager is not None:
            self.manager.shutdown()
        for socket in self.sockets:
            socket.close(linger=0)
        self.context.destroy(linger=0)


class MPClient(EngineCoreClient):
    """Starts a core's process and speaks with it.

    Args:
        setup: what the core is made from.
        others: front ends that share the core: their addresses, and the core's name on all sockets.
        link: how this front end shares a core that another process starts: see `SharedCore`.

    Attributes:
        dead_error: why the core is gone, None while it lives.
        iteration_timeout_s: silence after which a core that owes an answer counts as dead: the environment's
            `VLLM_ENGINE_ITERATION_TIMEOUT_S`, else 60, as upstream. A core in the middle of a long step is not silent,
            since another thread answers; nor is one whose main thread waits for ever, which looks the same from here.
            Upstream's client sees no more than that the process is there (`start_engine_core_monitor`).

    Raises:
        What the core raised when it was made; `EngineDeadError` if it ended without a word, `TimeoutError` after
        `VLLM_ENGINE_READY_TIMEOUT_S`, 600 by default, as upstream.

    Upstream: upstream/vllm/v1/engine/core_client.py:461 — `MPClient`.
    """

    def __init__(
        self, setup: CoreSetup, others: EngineZmqAddresses | None = None, link: SharedCore | None = None
    ) -> None:
        self._zmq = zmq = require_library("zmq")
        self._encoder, self._decoder = MsgpackEncoder(), MsgpackDecoder()
        self._outputs_decoder = MsgpackDecoder(EngineCoreOutputs)
        self.iteration_timeout_s: float = _seconds("VLLM_ENGINE_ITERATION_TIMEOUT_S", 60)
        ready_timeout_s = _seconds("VLLM_ENGINE_READY_TIMEOUT_S", 600)
        self.dead_error: EngineDeadError | None = None
        self._aborted, self._in_flight = AbortedRequests(), set[str]()
        self._results: dict[int, Future[Any]] = {}
        self._num_calls = self._num_silent = 0
        cache_gb = 0 if others or link else mm_cache_size(setup.model)  # several front ends: no order of requests
        self.mm_sender_cache = MultiModalProcessorSenderCache(cache_gb) if cache_gb else None
        self._ping: Future[Any] | None = None
        context = zmq.Context()
        self.resources = BackgroundResources(context)
        self._finalizer = weakref.finalize(self, self.resources)
        try:
            self._input, self._output = (self._bind(context, k, (link or setup).host) for k in (zmq.ROUTER, zmq.PULL))
            self._input.setsockopt(zmq.ROUTER_MANDATORY, 1)
            mine = [socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in (self._input, self._output)]
            self.manager: CoreEngineProcManager | SharedCore = link or self._start(setup, others, *mine)
            self._identity = self.manager.identity
            if link is not None:
                link.report(*mine)
            self.ready = self._wait_until_ready(ready_timeout_s)
        except BaseException as error:
            if isinstance(error, TimeoutError):
                self.manager.process.kill()
            self._finalizer()
            raise

    def _start(
        self, setup: CoreSetup, others: EngineZmqAddresses | None, input_address: str, output_address: str
    ) -> CoreEngineProcManager:
        found = others or EngineZmqAddresses([], [], b"core" + os.urandom(16))
        addresses = EngineZmqAddresses([input_address, *found.inputs], [output_address, *found.outputs], found.identity)
        start = CoreEngineProcManager if setup.place is None else setup.place.start
        manager = self.resources.manager = start(setup, addresses)
        manager.monitor(_death_notice(self._zmq, self.resources.context, addresses, self._encoder))
        return manager

    def _bind(self, context: Any, kind: int, host: str) -> Any:
        socket = context.socket(kind)
        self.resources.sockets.append(socket)
        for option in (self._zmq.SNDHWM, self._zmq.RCVHWM):
            socket.setsockopt(option, 0)
        socket.bind(f"tcp://{host}:*")
        return socket

    def _wait_until_ready(self, timeout_s: float) -> EngineCoreReadyResponse:
        end = time.monotonic() + timeout_s
        poller = self._zmq.Poller()
        poller.register(self._input, self._zmq.POLLIN)
        poller.register(self._output, self._zmq.POLLIN)
        while time.monotonic() < end:
            found = dict(poller.poll(1000))
            if self._input in found:
                identity, status, *more = self._input.recv_multipart()
                if identity != self._identity:
                    continue
                content = self._decoder.decode(more[0])
                if status != READY:
                    raise make_error(*content)
                return content[0]
            if self._output in found:
                frames = self._output.recv_multipart()
                if not own_words_come(self._input, frames[-1]):  # the core's own reason comes on the other socket
                    self._take(frames)
        raise TimeoutError(f"the engine core was not ready within {timeout_s} s (VLLM_ENGINE_READY_TIMEOUT_S)")

    def ensure_alive(self) -> None:
        """Raise `EngineDeadError` if the core is known to be gone; for a forked child it is."""
        if self.dead_error is None and (refusal := self.resources.owner.refusal) is not None:
            self.dead_error = EngineDeadError(refusal)
        if self.dead_error is not None:
            raise self.dead_error

    def _die(self, reason: str, cause: BaseException | None = None) -> EngineDeadError:
        if self.dead_error is None:
            self.dead_error = EngineDeadError(reason)
            self.dead_error.__cause__ = cause
        self._in_flight.clear()
        for future in self._results.values():
            if not future.done():
                future.set_exception(self.dead_error)
        self._results.clear()
        return self.dead_error

    def _take(self, frames: list[bytes]) -> EngineCoreOutputs | None:
        """One message: outputs, or None when it was an answer, which its caller gets. Raises for the core's last."""
        if frames[0] != self._identity:
            return None
        _, payload, *more = frames
        self._num_silent = 0
        if payload == DEAD:
            raise self._last_words(more[0])
        outputs: EngineCoreOutputs = self._outputs_decoder.decode(payload)
        if outputs.utility_output is None:
            return outputs
        self._answer(outputs.utility_output)
        return None

    def _last_words(self, payload: bytes) -> EngineDeadError:
        """The core's own say more than the monitor's, and may have arrived after them."""
        kind, message, trace = self._decoder.decode(payload)
        while not kind and (self._output.poll(0) or own_words_come(self._output, payload)):
            frames = self._output.recv_multipart()
            if frames[0] == self._identity and frames[1] == DEAD:
                kind, message, trace = self._decoder.decode(frames[2])
        name = f"{kind.removeprefix('builtins.')}: " if kind else ""
        return self._die(name + message, CoreTraceback(trace) if trace else None)

    def _answer(self, answer: UtilityOutput) -> None:
        """Upstream: upstream/vllm/v1/engine/core_client.py:726 — `_process_utility_output`."""
        future = self._results.pop(answer.call_id, None)
        if future is None or future.cancelled():
            return
        if answer.failure_message is not None:
            future.set_exception(make_error(answer.failure_type or "", answer.failure_message))
        else:
            future.set_result(self._decoder.decode(answer.result))

    def _send(self, request_type: EngineCoreRequestType, *payloads: bytes) -> None:
        self.ensure_alive()
        try:
            self._input.send_multipart((self._identity, request_type.value, *payloads))
        except self._zmq.ZMQError:  # nobody is connected any more, and soon it will be said why
            while self.dead_error is None and self._output.poll(5000):
                self._take(self._output.recv_multipart())
            raise self._die(self.manager.describe_end()) from None

    def _send_utility(self, method: str, args: tuple[Any, ...]) -> Future[Any]:
        payload = self._encoder.encode([self._num_calls, method, list(args)])
        if method == "reset_mm_cache" and self.mm_sender_cache is not None:
            self.mm_sender_cache.clear_cache()
        self._send(EngineCoreRequestType.UTILITY, payload)
        self._aborted.num_sent += method != PING  # the input thread answers that one
        future = self._results[self._num_calls] = Future[Any]()
        self._num_calls += 1
        return future

    def _on_silence(self, seconds: float) -> None:
        """Nothing came for a while: ask, and give up in the end."""
        if not self._in_flight and not self._results:
            return
        self._num_silent += 1
        if self._ping is None or self._ping.done():
            self._ping, self._num_silent = self._send_utility(PING, ()), 0
        elif self._num_silent * seconds >= self.iteration_timeout_s:
            self.manager.process.kill()
            raise self._die(
                f"its process {self.manager.pid} has given no sign of life for {self.iteration_timeout_s} s "
                "(VLLM_ENGINE_ITERATION_TIMEOUT_S): it was stopped, or hangs"
            )

    def _no_sign_of_life(self, timeout: float) -> TimeoutError:
        who = f"the engine core (process {self.manager.pid})"
        return TimeoutError(f"{who} gave no sign of life in {timeout} s: stopped, or hanging")

    def _encode_request(self, request: EngineCoreRequest) -> bytes:
        self.ensure_alive()
        try:
            request.request_id.encode()
        except UnicodeEncodeError:
            raise ValueError(f"request_id must be text that UTF-8 can hold, got {request.request_id!r}") from None
        if self.mm_sender_cache is None or not request.mm_features:
            payload = self._encoder.encode(request)
        else:
            with self.mm_sender_cache.sending(request.mm_features) as features:
                payload = self._encoder.encode(replace(request, mm_features=features))
        self._in_flight.add(request.request_id)
        return payload

    def has_request(self, request_id: str) -> bool:
        """True until its last output was handed on."""
        return request_id in self._in_flight

    def hand_on(self, outputs: EngineCoreOutputs) -> EngineCoreOutputs:
        """A step's outputs, less what is stale. A request that ends with them counts as ended from now on."""
        outputs.outputs = self._aborted.drop_stale(outputs.outputs, outputs.num_inputs)
        self._in_flight.difference_update([o.request_id for o in outputs.outputs if o.finish_reason is not None])
        return outputs

    def drop_stale(self, outputs: list[EngineCoreOutput], num_inputs: int) -> list[EngineCoreOutput]:
        """See `AbortedRequests`."""
        return self._aborted.drop_stale(outputs, num_inputs)

    def shutdown(self) -> None:
        """End the process and wait for it; whatever is unfinished ends with `EngineDeadError`."""
        self._die("it was shut down")
        self._finalizer()


def _death_notice(zmq: Any, context: Any, addresses: EngineZmqAddresses, encoder: MsgpackEncoder) -> Any:
    """A function that says to the client, as the core itself would, that the core is gone; for the monitor's thread."""

    def send(reason: str) -> None:
        for address in addresses.outputs:
            with contextlib.suppress(zmq.ZMQError), context.socket(zmq.PUSH) as socket:  # the client may be closing
                socket.setsockopt(zmq.LINGER, 1000)
                socket.connect(address)
                socket.send_multipart((addresses.identity, DEAD, encoder.encode(["", reason, ""])))

    return send
