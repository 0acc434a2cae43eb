"""What replicas and front ends hear of each other. Upstream twin: `vllm/v1/engine/coordinator.py`.

    replica    ── counts, "the wave has ended", "a request of an ended wave" ──▶ PULL
    front end  ── "a request, while all pause" ──▶ PULL
    coordinator: ROUTER ── "a wave starts" ──▶ replicas          PUB ── counts, and which wave it is ──▶ front ends

Upstream's is a process. This one is a thread of the process that starts the replicas: of the API server where there is
one, of the process that waits for them where there are several. It has a few messages in a step and computes nothing.
zmq carries them in threads of its own, so that the lock of Python delays them by milliseconds at most; and a thread
cannot be left behind, nor die alone.

A **wave** is the time in which replicas of a mixture step together, from the first request to the moment when none has
work. Dense replicas have nothing to step together for: of them only counts come.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from mini_vllm.engine import EngineCoreRequestType
from mini_vllm.engine.coordinator_links import (
    COUNTS,
    FIRST_REQ,
    SCALE,
    START_WAVE,
    STOP,
    WAVE_COMPLETE,
    CoordinatorAddresses,
    resized,
)
from mini_vllm.serial_utils import MsgpackDecoder, MsgpackEncoder, require_library
from mini_vllm.utils.system_utils import Owner

STATS_UPDATE_INTERVAL_MS = 100
"""Between two publications of counts that have changed (upstream: `min_stats_update_interval_ms`)."""
IDLE_INTERVAL_MS = 5000
"""Between two where nothing has."""
_SETTLE_MS = 50


class CoordinatorState:
    """What the coordinator knows, and what follows from a message. No sockets here.

    Attributes:
        counts: [waiting, running] of each replica. current_wave: the number of the wave that runs, or comes next.
        engines_running: a wave runs. stats_changed: counts came that nobody was told.

    Upstream: upstream/vllm/v1/engine/coordinator.py:187 — `process_input_socket`, where these are local variables.
    """

    def __init__(self, engine_count: int) -> None:
        self.counts = [[0, 0] for _ in range(engine_count)]
        self.current_wave = 0
        self.engines_running = self.stats_changed = False
        self.last_step_counts: list[list[int]] | None = None
        self._last_step = (-1, -1)

    def take_counts(self, engine: int, waiting: int, running: int, wave: int, step: int) -> None:
        """Counts of a replica. What all said of the step before is kept apart: it is whole, and is published first."""
        if engine >= len(self.counts):
            return  # the last word of one that has left
        if (wave, step) > self._last_step:
            if self.stats_changed:
                self.last_step_counts = [list(each) for each in self.counts]
            self._last_step = wave, step
        self.counts[engine] = [waiting, running]
        self.stats_changed = True

    def scale(self, engine_count: int, new_engines: list[int]) -> None:
        """There are so many replicas now, and these are new.

        Upstream: upstream/vllm/v1/engine/coordinator.py:288 — "SCALE_ELASTIC_EP".
        """
        self.counts = resized(self.counts, engine_count)
        for engine in new_engines:
            self.counts[engine] = [0, 0]
        self.last_step_counts, self.stats_changed = None, True

    def first_request(self, engine: int, wave: int) -> tuple[int, int | None] | None:
        """A front end sent a request while all pause. Returns the wave to start and who need not be told, or None.

        A front end that knows an older wave may have sent to a replica that takes the request for a late one: so all
        are told.
        """
        if self.engines_running:
            return None
        self.engines_running = True
        return self.current_wave, None if wave < self.current_wave else engine

    def wave_complete(self, wave: int) -> bool:
        """The first replica says that all pause. True where that is news."""
        if self.current_wave > wave:
            return False
        self.current_wave, self.engines_running = wave + 1, False
        return True

    def start_wave(self, engine: int, wave: int) -> tuple[int, int | None] | None:
        """A replica got a request that was sent in a wave that has ended. As `first_request`."""
        if wave < self.current_wave or (wave == self.current_wave and self.engines_running):
            return None
        self.current_wave, self.engines_running = wave, True
        return wave, engine

    def take_to_publish(self) -> list[list[int]]:
        """The counts to publish now."""
        if (before := self.last_step_counts) is not None:
            self.last_step_counts = None
            return before
        self.stats_changed = False
        return self.counts


class DPCoordinator:
    """The coordinator of an engine's replicas, from its first message to its last.

    Args:
        engine_count: replicas. host: the address of this node, where replicas and front ends find the coordinator.

    Attributes:
        addresses: for replicas and front ends. state: see there; only the thread writes to it.

    Upstream: upstream/vllm/v1/engine/coordinator.py:23 — `DPCoordinator`.
    """

    def __init__(self, engine_count: int, host: str = "127.0.0.1") -> None:
        self._zmq = zmq = require_library("zmq")
        self.state = CoordinatorState(engine_count)
        self._encoder, self._decoder = MsgpackEncoder(), MsgpackDecoder()
        self._context = zmq.Context()
        self._inputs, self._engines, self._front = (self._bind(kind, host) for kind in (zmq.PULL, zmq.ROUTER, zmq.PUB))
        inputs, engines, front = (
            each.getsockopt_string(zmq.LAST_ENDPOINT) for each in (self._inputs, self._engines, self._front)
        )
        self.addresses = CoordinatorAddresses(inputs, engines, front, os.urandom(16))
        self._identities: dict[int, bytes] = {}
        self._early: list[tuple[int, int | None]] = []
        self._owner, self._stopped = Owner(), False
        self._thread = threading.Thread(target=self._run, daemon=True, name="DPCoordinator")
        self._thread.start()

    def _bind(self, kind: int, host: str) -> Any:
        socket = self._context.socket(kind)
        for option in (self._zmq.SNDHWM, self._zmq.RCVHWM):
            socket.setsockopt(option, 0)
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.bind(f"tcp://{host}:*")
        return socket

    def _run(self) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        poller.register(self._inputs, zmq.POLLIN)
        poller.register(self._engines, zmq.POLLIN)
        published = 0.0
        with self._inputs, self._engines, self._front:
            while not self._stopped:
                state = self.state
                wait_for = STATS_UPDATE_INTERVAL_MS if state.stats_changed else IDLE_INTERVAL_MS
                left = wait_for - (time.monotonic() - published) * 1000
                least = _SETTLE_MS if state.last_step_counts is None else 0  # all replicas have spoken of a step then
                found = dict(poller.poll(max(least, left)))
                if not found or left < -_SETTLE_MS:  # upstream waits for a pause, which many replicas may never make
                    self._publish(state.take_to_publish())
                    published = time.monotonic()
                if self._engines in found:
                    self._greet(*self._engines.recv_multipart())
                if self._inputs in found:
                    self._handle(*self._inputs.recv_multipart())

    def _greet(self, identity: bytes, *frames: bytes) -> None:
        """A replica says who it is, before its first step."""
        if frames[0] == self.addresses.key:
            self._identities[self._decoder.decode(frames[1])] = identity
            if len(self._identities) == len(self.state.counts):
                early, self._early = self._early, []
                for wave, exclude in early:
                    self._send_start_wave(wave, exclude)

    def _handle(self, key: bytes, *frames: bytes) -> None:
        if key != self.addresses.key:
            return
        kind, engine, *more = self._decoder.decode(frames[0])
        state, start, changed = self.state, None, False
        if kind == COUNTS:
            state.take_counts(engine, *more)
        elif kind == FIRST_REQ:
            start = state.first_request(engine, *more)
        elif kind == WAVE_COMPLETE:
            changed = state.wave_complete(*more)
        elif kind == START_WAVE:
            start = state.start_wave(engine, *more)
        elif kind == SCALE:
            state.scale(*more)
            left = [each for each in self._identities if each >= len(state.counts) or each in more[1]]
            for each in left:
                del self._identities[each]
        elif kind == STOP:
            self._stopped = True
        if start is not None:
            self._send_start_wave(*start)
        if start is not None or changed:
            self._publish(None)

    def _send_start_wave(self, wave: int, exclude: int | None) -> None:
        """Tell all replicas but one, which knows.

        Upstream: upstream/vllm/v1/engine/coordinator.py:443 — `_send_start_wave`.
        """
        if len(self._identities) < len(self.state.counts):
            self._early.append((wave, exclude))
            return
        payload = self._encoder.encode([wave, exclude])
        for identity in self._identities.values():
            self._engines.send_multipart((identity, EngineCoreRequestType.START_DP_WAVE.value, payload))

    def _publish(self, counts: list[list[int]] | None) -> None:
        self._front.send(self._encoder.encode([counts, self.state.current_wave, self.state.engines_running]))

    def shutdown(self) -> None:
        """End the thread, and wait for it; a second call does nothing."""
        if self._owner.refusal is not None:
            return
        if self._thread.is_alive():
            with self._context.socket(self._zmq.PUSH) as socket:
                socket.connect(self.addresses.inputs)
                socket.send_multipart((self.addresses.key, self._encoder.encode([STOP, 0])))
                if self._thread is threading.current_thread():
                    return  # the garbage collector may run there; the thread ends when it reads that
                self._thread.join()
        self._context.term()
