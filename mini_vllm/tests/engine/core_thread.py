"""A core in a thread, behind the sockets of one in a process of its own: a fast twin of the tests that start such a
process. What goes there still goes by pickle and over sockets."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable

from mini_vllm.engine import EngineCoreRequestType, utils
from mini_vllm.engine.core_proc import EngineCoreProc
from mini_vllm.engine.core_wire import Wire

PATIENCE_S = 120.0


class CoreThread:
    """In the place of `mp_client.CoreEngineProcManager`, whose arguments and methods it has."""

    def __init__(self, setup: utils.CoreSetup, addresses: utils.EngineZmqAddresses) -> None:
        self.identity, self.pid = addresses.identity, os.getpid()
        self._payload, self._addresses = utils.pickled(setup), addresses
        self._made = threading.Event()
        self._core: EngineCoreProc | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="core")
        self._thread.start()

    def _run(self) -> None:
        wire = Wire(self._addresses)
        try:
            core = self._core = EngineCoreProc.make(wire, pickle.loads(self._payload))
            ready = core.ready_response()
        except Exception as error:
            wire.send_start(EngineCoreProc.FAILED, type(error).__qualname__, str(error), "")
            wire.close_inputs(1000)
            wire.close()
            return
        finally:
            self._made.set()
        wire.send_start(core.READY, ready)
        with contextlib.suppress(SystemExit):
            core.serve()

    def monitor(self, on_death: Callable[[str], None]) -> None:
        """A thread does not die unasked: an error of the core arrives as its last words."""

    def kill(self) -> None:
        """Have it die before its next step, as by a fault of its own."""
        assert self._made.wait(PATIENCE_S) and self._core is not None
        self._core.input_queue.put((EngineCoreRequestType.WAKEUP, ArithmeticError("it was killed"), 0))

    def describe_end(self) -> str:
        """As the process does."""
        return "its thread has ended"

    def ask_to_end(self) -> None:
        """Without a wait for its end."""
        assert self._made.wait(PATIENCE_S)
        if self._core is not None:
            self._core.request_shutdown()

    def shutdown(self) -> None:
        """Ask it to end, and wait."""
        self.ask_to_end()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
