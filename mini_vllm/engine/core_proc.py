"""The core in a process of its own: messages in, steps, messages out.

    input thread:  socket -> decoded -> input_queue        main thread:  input_queue -> step -> output socket

Upstream twin: upstream/vllm/v1/engine/core.py:835 — `EngineCoreProc`. There a third thread encodes and sends. Here the
main thread does it, since a step takes little to encode: another thread of Python would wait for the same lock.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from mini_vllm.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
    UtilityOutput,
)
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.core_wire import LINGER_MS, Wire
from mini_vllm.engine.parts import EngineParts, parts_from_labs
from mini_vllm.engine.utils import CoreSetup, watch_front_end
from mini_vllm.multimodal.cache import MultiModalReceiverCache, mm_cache_size
from mini_vllm.plugins import load_general_plugins
from mini_vllm.request import Request
from mini_vllm.serial_utils import MsgpackDecoder

PING = "ping"
"""A utility call that the input thread answers: a sign of life in the middle of a long step."""


class EngineCoreProc(EngineCore):
    """An `EngineCore` that hears and answers over sockets.

    Upstream: upstream/vllm/v1/engine/core.py:835 — `EngineCoreProc`.
    """

    ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
    READY, FAILED = b"READY", b"FAILED"

    def __init__(self, wire: Wire, setup: CoreSetup) -> None:
        super().__init__(setup.model, setup.config, self._parts(setup), setup.tokenizer)
        self.wire = wire
        size = mm_cache_size(self.resolved_model) if wire.num_clients == 1 else 0
        self.mm_receiver_cache = MultiModalReceiverCache(size) if size else None
        self.input_queue: queue.SimpleQueue[tuple[EngineCoreRequestType, Any, int]] = queue.SimpleQueue()
        self.shutdown_requested = False

    @staticmethod
    def run_engine_core(stream: BinaryIO, watch: Callable[[int, Callable[[], None]], None] = watch_front_end) -> None:
        """The process from start to end: setup from `stream`, the handshake, the loop, and how it ended.

        `watch`: gets the front end's process and what ends the core.

        Upstream: upstream/vllm/v1/engine/core.py:1093 — `EngineCoreProc.run_engine_core`, and `:108` — calls
        `load_general_plugins`.
        """
        addresses, parent = pickle.load(stream)
        wire = Wire(addresses)
        core: EngineCoreProc | None = None
        try:
            load_general_plugins()  # before anything is looked up that one of them brings
            setup = pickle.load(stream)
            watch(parent, lambda: core.request_shutdown() if core else os._exit(1))
            core = EngineCoreProc.make(wire, setup)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, lambda *_: core.request_shutdown())
            ready = core.ready_response()
        except BaseException as error:
            wire.send_start(EngineCoreProc.FAILED, *_describe(error))
            wire.close_inputs(LINGER_MS)
            wire.close()
            sys.exit(1)
        wire.send_start(core.READY, ready)
        core.serve()

    @staticmethod
    def _parts(setup: CoreSetup) -> EngineParts:
        return parts_from_labs(setup.with_labs)

    @staticmethod
    def make(wire: Wire, setup: CoreSetup) -> EngineCoreProc:
        """The core, or one of several replicas.

        Upstream: upstream/vllm/v1/engine/core.py:1128 — "if data_parallel and vllm_config.model_config.is_moe:".
        """
        if setup.coordinator is None:
            return EngineCoreProc(wire, setup)
        from mini_vllm.engine.dp_core_proc import DPEngineCoreProc

        return DPEngineCoreProc(wire, setup)

    def serve(self) -> None:
        """The loop, and its end: asked for, or by a fault, of which the front end then hears."""
        threading.Thread(target=self.process_input_socket, daemon=True, name="input").start()
        code = linger_ms = 0  # who asked for the end reads no more
        try:
            self.run_busy_loop()
        except BaseException as error:
            last_words = self.wire.encoder.encode(_describe(error))
            self.wire.send_last(self.ENGINE_CORE_DEAD, last_words)
            code, linger_ms = 1, LINGER_MS
        self.shutdown()
        self.wire.close(linger_ms)
        sys.exit(code)

    def run_busy_loop(self) -> None:
        """Until a shutdown is asked for: hear what came in, and make a step if there is something to do.

        Upstream: upstream/vllm/v1/engine/core.py:1193 — `EngineCoreProc.run_busy_loop`.
        """
        while self._process_input_queue():
            outputs = self.step_fn()
            if outputs:
                self.wire.send_step(outputs, time.monotonic())

    def has_work(self) -> bool:
        """True while a step has something to do (upstream/vllm/v1/engine/core.py:1181 — `has_work`)."""
        return self.has_requests() or bool(self.batch_queue)

    def _process_input_queue(self) -> bool:
        """Handle all messages that are there; wait for one where there is nothing else to do. False: the end."""
        while True:
            idle = not self.has_work() and not self.shutdown_requested
            try:
                request_type, content, client = self.input_queue.get(block=idle)
            except queue.Empty:
                return not self.shutdown_requested
            if request_type is EngineCoreRequestType.WAKEUP:
                if content is not None:
                    raise content
                continue
            if client >= 0:  # else the coordinator's
                self.wire.num_inputs[client] += 1
            self._handle_client_request(request_type, content, client)

    def _handle_client_request(self, request_type: EngineCoreRequestType, content: Any, client: int) -> None:
        """Upstream: upstream/vllm/v1/engine/core.py:1294 — `EngineCoreProc._handle_client_request`."""
        if request_type is EngineCoreRequestType.ADD:
            self._add_requests(self.wire.own(client, content))
        elif request_type is EngineCoreRequestType.ABORT:
            self.abort_requests(self.wire.own_ids(client, content))
        else:
            self.wire.send(EngineCoreOutputs(utility_output=self._call(*content)), client)

    def _add_requests(self, requests: list[EngineCoreRequest]) -> None:
        failed = []
        for request in requests:
            try:
                self.add_request(self.preprocess_add_request(request))
            except Exception as error:  # the front end has checked; so this is a fault, and of this request alone
                failed.append(EngineCoreOutput(request.request_id, [], None, FinishReason.ERROR, str(error)))
        if failed:
            self.wire.send_step(failed, time.monotonic())

    def preprocess_add_request(self, request: EngineCoreRequest) -> Request:
        """With the items that the front end has left out.

        Upstream: upstream/vllm/v1/engine/core.py:803 — "if self.mm_receiver_cache is not None".
        """
        if self.mm_receiver_cache is not None and request.mm_features:
            request.mm_features = self.mm_receiver_cache.get_and_update_features(request.mm_features)
        return super().preprocess_add_request(request)

    def reset_mm_cache(self) -> None:
        """Forget all items (upstream/vllm/v1/engine/core.py:616 — `EngineCore.reset_mm_cache`)."""
        if self.mm_receiver_cache is not None:
            self.mm_receiver_cache.clear_cache()

    def _call(self, call_id: int, method: str, args: list[Any]) -> UtilityOutput:
        """Call a public method of the core, whatever it raises."""
        try:
            if method.startswith("_"):
                raise AttributeError(f"{method!r} is not a utility")
            return UtilityOutput(call_id, result=self.wire.encoder.encode(getattr(self, method)(*args)))
        except Exception as error:
            kind, message, _ = _describe(error)
            return UtilityOutput(call_id, failure_message=message, failure_type=kind)

    def process_input_socket(self) -> None:
        """The input thread.

        Upstream: upstream/vllm/v1/engine/core.py:1400 — `EngineCoreProc.process_input_sockets`.
        """
        zmq, decoder = self.wire.zmq, MsgpackDecoder()
        answers, nothing = self.wire.new_outputs(), self.wire.encoder.encode(None)
        try:
            for client, (frame, *data) in self.wire.receive():
                request_type = EngineCoreRequestType(frame)
                if request_type is EngineCoreRequestType.ADD:
                    self.input_queue.put((request_type, [decoder.decode(each) for each in data], client))
                    continue
                content = decoder.decode(data[0])
                if request_type is EngineCoreRequestType.UTILITY and content[1] == PING:
                    pong = UtilityOutput(content[0], result=nothing)
                    self.wire.send(EngineCoreOutputs(utility_output=pong), client, answers)
                else:
                    self.input_queue.put((request_type, content, client))
        except zmq.ContextTerminated:
            pass
        except Exception as error:  # a message that cannot be read: the main thread raises it
            self.input_queue.put((EngineCoreRequestType.WAKEUP, error, 0))
        finally:
            self.wire.close_inputs()
            for socket in answers:
                with contextlib.suppress(zmq.ZMQError):
                    socket.close(0)

    def request_shutdown(self) -> None:
        """End the loop after the step under way. For other threads and signal handlers."""
        self.shutdown_requested = True
        self.input_queue.put((EngineCoreRequestType.WAKEUP, None, 0))


def _describe(error: BaseException) -> list[str]:
    """Class, text and traceback, for the front end."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return [kind, str(error), "".join(traceback.format_exception(error))]
