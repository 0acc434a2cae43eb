"""Starting the process of an engine core, and ending it. Upstream twin: `vllm/v1/engine/utils.py`.

The process is a fresh interpreter (upstream: `multiprocessing` with spawn) that reads what it needs from its standard
input. It never imports the caller's main module, so a script needs no `if __name__ == "__main__"`, and a notebook or a
script from standard input will do. The pipe then stays open as a line of life: when the front end closes it, or dies
of whatever cause, the core reads the end of the file and goes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mini_vllm.distributed.shared_memory import num_cores

if TYPE_CHECKING:
    from mini_vllm.distributed.data_parallel_ranks import InheritedGroup
    from mini_vllm.engine.coordinator_links import CoordinatorAddresses
    from mini_vllm.engine.core_actors import Place

_START = (
    "import pickle, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
    "from mini_vllm.engine.core_proc import EngineCoreProc\n"
    "EngineCoreProc.run_engine_core(sys.stdin.buffer)\n"
)
_GRACE_S = 5.0
"""How long a process may take to end, step under way included, before it is made to."""


@dataclass(frozen=True)
class EngineZmqAddresses:
    """Where a core finds its front ends.

    Attributes:
        inputs, outputs: sockets that they have bound, requests and results, one pair a front end.
        identity: the core's name on the first; secret, so that no other program of this machine can take its place.

    Upstream: upstream/vllm/v1/engine/utils.py:63 — `EngineZmqAddresses`.
    """

    inputs: list[str]
    outputs: list[str]
    identity: bytes


@dataclass(frozen=True)
class CoreSetup:
    """What a core is made from: what `LLMEngine` was given, less what the front end keeps."""

    config: Any
    model: Any
    with_labs: Any = None
    tokenizer: Any = None
    """One that is not the checkpoint's own, or its folder; grammars need it."""
    coordinator: CoordinatorAddresses | None = None
    """Of the replicas of which this core is `config.data_parallel_rank`; None: there is one core."""
    dp_group: InheritedGroup | None = None
    """The ranks of all replicas, where these share experts."""
    host: str = "127.0.0.1"
    """Of this node, as the core reaches it."""
    place: Place | None = None
    """In a Ray cluster; None: the core is a process of this machine."""


def share_of_cores(size: int) -> dict[str, str]:
    """Variables for one of `size` replicas: its share of the cores, unless the user has said how many threads.

    Threads of all of them on all cores would wait for one another.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    if size == 1 or any(name in os.environ for name in names):
        return {}
    return dict.fromkeys(names, str(max(1, num_cores() // size)))


class CoreEngineProcManager:
    """One core's process, from start to end.

    Args:
        setup: sent to the process by pickle, once, over a pipe that nobody else can write to.
        addresses: see there.

    Raises:
        ValueError: something in `setup` cannot be sent to another process.

    Upstream: upstream/vllm/v1/engine/utils.py:104 — `CoreEngineProcManager`.
    """

    def __init__(self, setup: CoreSetup, addresses: EngineZmqAddresses) -> None:
        payload = pickled(setup)
        self.identity = addresses.identity
        self._owner = os.getpid()
        self._stopping = False
        self._monitor: threading.Thread | None = None
        fds = () if setup.dp_group is None else setup.dp_group.fds
        size = 1 if setup.coordinator is None else setup.config.data_parallel_size
        env = {**os.environ, **share_of_cores(size)}
        self.process = subprocess.Popen([sys.executable, "-c", _START], stdin=subprocess.PIPE, pass_fds=fds, env=env)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; whoever waits for it will notice
            self.process.stdin.write(pickle.dumps(sys.path) + pickle.dumps((addresses, os.getpid())) + payload)
            self.process.stdin.flush()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def monitor(self, on_death: Callable[[str], None]) -> None:
        """Call `on_death` with what happened, from a thread, as soon as the process has ended unasked.

        Upstream: upstream/vllm/v1/engine/core_client.py:673 — `MPClient.start_engine_core_monitor`.
        """

        def wait() -> None:
            self.process.wait()
            if not self._stopping:
                on_death(self.describe_end())

        self._monitor = threading.Thread(target=wait, daemon=True, name="MPClientEngineMonitor")
        self._monitor.start()

    def describe_end(self) -> str:
        """How the process ended, in words; that it runs, while it does."""
        code = self.process.poll()
        if code is None:
            return f"its process {self.pid} runs"
        if code >= 0:
            return f"its process {self.pid} ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its process {self.pid} was ended by {name}"

    def ask_to_end(self) -> None:
        """Without a wait: `shutdown` waits."""
        self._stopping = True
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def shutdown(self, timeout: float = _GRACE_S) -> None:
        """Ask the process to end, and wait; then make it. Does nothing in a forked child of the owner."""
        if os.getpid() != self._owner:
            return
        self.ask_to_end()
        if self._monitor is threading.current_thread():
            return  # the garbage collector may run there; that thread waits for the process in any case
        if not self._gone_within(timeout):
            self.process.terminate()
        if not self._gone_within(1.0):
            self.process.kill()  # ends a stopped process too
            self.process.wait()
        if self._monitor is not None:
            self._monitor.join()

    def _gone_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self._monitor is not None and self._monitor.is_alive() and time.monotonic() < end:
            self._monitor.join(max(0.0, end - time.monotonic()))  # it waits for the process already
        try:
            self.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def own_words_come(socket: Any, death: bytes) -> bool:
    """Whether a core that has ended says why itself: it has, with exit code 1, and a busy machine brings it later than
    the monitor's words, `death`."""
    return b"ended with exit code 1\xa0" in death and any(socket.poll(100) for _ in range(50))


def pickled(setup: CoreSetup) -> bytes:
    """For another process. Raises ValueError where something in it cannot be sent."""
    model_class = type(setup.model.model)
    if model_class.__module__ == "__main__":
        raise ValueError(
            f"model {model_class.__name__} is defined in the main script, which a core in a process of its own cannot "
            "import: define it in a module, or set enable_multiprocessing=False"
        )
    try:
        return pickle.dumps(setup)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"what the engine is made of cannot be sent to a core in a process of its own ({error}): give a checkpoint "
            "folder and names, or set enable_multiprocessing=False"
        ) from None


def watch_front_end(pid: int, on_gone: Callable[[], None]) -> None:
    """In the core: call `on_gone` when standard input ends or the parent is no longer `pid`; from a thread.

    If the process is still there some seconds later, it is ended: a step can take long, and nobody wants its result.
    """
    descriptor = sys.stdin.fileno()

    def watch() -> None:
        if os.name == "posix":
            import select

            # A child that the front end forked may hold the pipe open after it: so the parent is looked at too.
            while not select.select([descriptor], [], [], 1.0)[0] and os.getppid() == pid:
                pass
        else:
            os.read(descriptor, 1)
        on_gone()
        time.sleep(_GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="front end watch").start()
