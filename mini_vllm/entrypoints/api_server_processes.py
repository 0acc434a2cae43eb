"""Several processes for HTTP in front of one core, or of its replicas: `--api-server-count N`.

    mini-vllm serve ──┬── core ◀──────────┐ two sockets each, which the servers have bound
      binds the port  ├── ApiServer_0 ────┤
      waits, ends all └── ApiServer_1 ────┘ all accept from the one port

Upstream twins: `run_multi_api_server` in `vllm/entrypoints/cli/serve.py`, and `vllm/v1/utils.py`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from functools import partial
from typing import Any

from mini_vllm.config.data_parallel import has_replicas
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.exceptions import EngineDeadError
from mini_vllm.engine.front_end import core_setup
from mini_vllm.engine.mp_client import MPClient
from mini_vllm.engine.replicas import ReplicaStarter, start_together
from mini_vllm.engine.utils import CoreSetup, EngineZmqAddresses
from mini_vllm.entrypoints.launcher import LAST_WORDS_S
from mini_vllm.entrypoints.openai.api_server import close_server_socket, setup_server
from mini_vllm.logger import init_logger
from mini_vllm.metrics.multiprocess import setup_multiprocess_prometheus
from mini_vllm.model_loader.checkpoint import resolve_model

logger = init_logger(__name__)
_START = (
    "import pickle, sys\n"
    "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
    "from mini_vllm.entrypoints.api_server_worker import run_api_server_worker_proc\n"
    "run_api_server_worker_proc(sys.stdin.buffer)\n"
)
_LOOK_S = 0.05
_GRACE_S = 5.0


class APIServerProcessManager:
    """N API servers, from start to end. They ignore the terminal: what it sends, this process passes on.

    Upstream: upstream/vllm/v1/utils.py:161 — `APIServerProcessManager`.
    """

    def __init__(
        self, listen_address: str, sock: socket.socket, args: Namespace, num_servers: int, replicas: Replicas
    ) -> None:
        self.identities = [b"core" + os.urandom(16) for _ in range(replicas.size)]
        shared: Any = self.identities, None, False, "127.0.0.1"
        if (starter := replicas.starter) is not None:
            shared = self.identities, starter.coordinator.addresses, starter.group is not None, starter.host
        self.processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Any] = []
        for index in range(num_servers):
            read, write = os.pipe()
            self._pipes.append(os.fdopen(read, "rb"))
            process = subprocess.Popen(
                [sys.executable, "-c", _START],
                stdin=subprocess.PIPE, pass_fds=(sock.fileno(), write), start_new_session=True,
            )  # fmt: skip
            os.close(write)
            self.processes.append(process)
            assert process.stdin is not None
            content = (os.getpid(), index, num_servers, shared, listen_address, sock.fileno(), write, args)
            with contextlib.suppress(BrokenPipeError):  # it died at once; whoever waits for it will notice
                process.stdin.write(pickle.dumps(sys.path) + pickle.dumps(content))
                process.stdin.flush()
        logger.info("Started %d API server processes", num_servers)

    def gather_actual_addresses(self) -> list[EngineZmqAddresses]:
        """Where they wait for each replica. Raises RuntimeError where one has ended before it said so.

        Upstream: upstream/vllm/v1/utils.py:242 — `APIServerProcessManager.gather_actual_addresses`.
        """
        found = [EngineZmqAddresses([], [], identity) for identity in self.identities]
        for index, pipe in enumerate(self._pipes):
            try:
                addresses = pickle.load(pipe)
            except EOFError:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.processes[index].wait(_GRACE_S)
                raise RuntimeError(
                    f"API server process {self.describe(index)} before it reported its addresses"
                ) from None
            finally:
                pipe.close()
            for replica, (input_address, output_address) in zip(found, addresses, strict=True):
                replica.inputs.append(input_address)
                replica.outputs.append(output_address)
        return found

    def describe(self, index: int) -> str:
        """The end of one, in upstream's words."""
        process = self.processes[index]
        return f"ApiServer_{index} (PID: {process.pid}) died with exit code {process.poll()}"

    def signal(self, number: int) -> None:
        """To each that lives."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def shutdown(self, timeout: float, at_once: bool = False) -> None:
        """Ask all to drain, or to abort `at_once`; after `timeout` seconds end them. Then they are gone."""
        self.signal(signal.SIGTERM)
        if at_once:
            self.signal(signal.SIGINT)  # the second signal; the same one again could melt into the first
        deadline = time.monotonic() + timeout
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()


class CoreOwner(MPClient):
    """The front end that starts the core and asks nothing of it."""

    def raise_last_words(self) -> None:
        """Raise `EngineDeadError` with what the core said at its end, if it has come to that."""
        while self._output.poll(0):
            self._take(self._output.recv_multipart())


class Replicas:
    """The core, or all replicas of it, from before their start to their end.

    Attributes:
        size: how many. starter: of several; None for one core. alive: the owner of each that lives, by rank.
    """

    def __init__(self, setup: CoreSetup) -> None:
        self.setup, self.size = setup, setup.config.data_parallel_size
        self.alive: dict[int, CoreOwner] = {}
        self.starter = ReplicaStarter(setup) if has_replicas(setup.config) else None

    def start(self, addresses: list[EngineZmqAddresses]) -> None:
        """Start all, and wait until they are ready. Raises what one of them raised."""
        setups = [self.setup] if self.starter is None else self.starter.setups(range(self.size), self.size)
        owners = start_together([partial(CoreOwner, *each) for each in zip(setups, addresses, strict=True)])
        self.alive = dict(enumerate(owners))

    def raise_last_words(self) -> None:
        """Raise `EngineDeadError` where the service cannot go on: the last replica has died, or one that shares
        experts."""
        for rank, owner in list(self.alive.items()):
            try:
                owner.raise_last_words()
            except EngineDeadError as error:
                if len(self.alive) == 1 or (self.starter is not None and self.starter.group is not None):
                    raise
                owner.shutdown()
                del self.alive[rank]
                logger.error("Replica %d is gone: %s", rank, error.reason)

    def shutdown(self) -> None:
        """End all."""
        for owner in self.alive.values():
            owner.shutdown()
        if self.starter is not None:
            self.starter.coordinator.shutdown()


def make_core_setup(args: Namespace) -> CoreSetup:
    """What the core is made from; raises for flags that no engine can have, before anything is started."""
    kwargs = EngineArgs.from_cli_args(args).as_kwargs()
    model, tokenizer = kwargs.pop("model", None), kwargs.pop("tokenizer", None)
    config = EngineConfig.from_args(**kwargs)
    resolved, found, _ = resolve_model(model, tokenizer, config)
    if config.reasoning is not None:
        config.reasoning.initialize_token_ids(found)
    return core_setup(config, resolved, kwargs.get("with_labs"), tokenizer)


def run_multi_api_server(args: Namespace) -> None:
    """Serve until a signal comes, the core dies, or one of the servers does.

    Raises:
        ValueError: what is wrong with the flags. EngineDeadError, RuntimeError: who died.

    Upstream: upstream/vllm/entrypoints/cli/serve.py:257 — `run_multi_api_server`.
    """
    if os.name != "posix":
        raise ValueError(f"--api-server-count must be 1 on this system, got {args.api_server_count}: no shared sockets")
    if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").strip().lower() in ("1", "true"):
        raise ValueError("VLLM_ALLOW_RUNTIME_LORA_UPDATING cannot be used with api_server_count > 1")
    ends = _Ends()
    listen_address, sock = setup_server(args)
    manager: APIServerProcessManager | None = None
    replicas: Replicas | None = None
    with contextlib.ExitStack() as stack:
        stack.callback(close_server_socket, args, sock)
        stack.enter_context(setup_multiprocess_prometheus())
        try:
            replicas = Replicas(make_core_setup(args))
            count = args.api_server_count
            manager = ends.manager = APIServerProcessManager(listen_address, sock, args, count, replicas)
            replicas.start(manager.gather_actual_addresses())
            wait_for_completion_or_failure(manager, replicas)
        except SystemExit:
            logger.info("Waiting up to %g seconds for requests to end", args.shutdown_timeout)
        finally:
            if manager is not None:
                drain = args.shutdown_timeout if ends.asked else 0.0
                manager.shutdown(drain + 2 * LAST_WORDS_S + _GRACE_S, at_once=not ends.asked)
            if replicas is not None:
                replicas.shutdown()
            ends.restore()


class _Ends:
    """SIGTERM and SIGINT: the first one ends the wait, each further one goes to the servers, which hurry then."""

    def __init__(self) -> None:
        self.asked = False
        self.manager: APIServerProcessManager | None = None
        self._before = {number: signal.signal(number, self._come) for number in (signal.SIGINT, signal.SIGTERM)}

    def _come(self, *_: Any) -> None:
        if not self.asked:
            self.asked = True
            raise SystemExit
        if self.manager is not None:
            self.manager.signal(signal.SIGINT)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def wait_for_completion_or_failure(manager: APIServerProcessManager, core: Replicas) -> None:
    """Return when all servers have ended well; raise for the first process that has not.

    Upstream: upstream/vllm/v1/utils.py:479 — `wait_for_completion_or_failure`.
    """
    running = set(range(len(manager.processes)))
    while running:
        core.raise_last_words()
        for index in sorted(running):
            code = manager.processes[index].poll()
            if code:
                raise RuntimeError(f"Process {manager.describe(index)}")
            if code == 0:
                running.discard(index)
        time.sleep(_LOOK_S)
