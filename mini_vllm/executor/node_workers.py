"""Ranks on several machines: the same busy loop as on one, with a socket to rank 0 where that has shared memory.

    node 0    mini-vllm serve MODEL --nnodes 2 --node-rank 0 ...               rank 0, with the engine
    node 1    mini-vllm serve MODEL --nnodes 2 --node-rank 1 --headless ...    ranks from world_size / 2 on

All ranks come to `master_addr:master_port` (`distributed/rendezvous.py`). There they are asked what they serve: each
node has read its own arguments and its own copy of the model. Rank 0 sends each call to each of them, and they answer.

Calls and answers are pickles, as upstream's: whoever takes part can have code run on all machines. The port is for a
network of one's own.

Upstream twin: `vllm/v1/executor/multiproc_executor.py`, with the remote readers of
upstream/vllm/distributed/device_communicators/shm_broadcast.py:358 — `MessageQueue`.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from mini_vllm.compilation.cpu_scratch import exchange_elements
from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed import rendezvous
from mini_vllm.distributed.arrivals import RendezvousError
from mini_vllm.distributed.node_ranks import NodeRanks, groups_in_memory, make_tp_group
from mini_vllm.distributed.parallel_state import TensorParallelGroup, initialize_model_parallel
from mini_vllm.distributed.tcp_links import SocketConnection
from mini_vllm.executor.local_workers import end_processes, start_process
from mini_vllm.executor.node_settings import node_settings
from mini_vllm.executor.worker_proc import PROGRESS, WorkerProc
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
_PATIENCE_S = 120.0


class RemoteProc:
    """A process that is known by its connection alone; as much of `multiprocessing.Process` as is asked for."""

    pid = None

    def __init__(self, connection: SocketConnection) -> None:
        self._connection, self.sentinel = connection, connection.fileno()

    def is_alive(self) -> bool:
        """Until the connection is closed here; what happens there, a read tells."""
        return self._connection.fileno() >= 0


@dataclass
class RemoteWorkerHandle:
    """A `WorkerProcHandle` of a rank with a socket. said: what it has told of itself. state: no letter is known."""

    rank: int
    proc: RemoteProc
    connection: SocketConnection
    said: dict[str, Any]
    state = "remote"

    @property
    def name(self) -> str:
        """Who it is, for messages."""
        return f"rank {self.rank} (pid {self.said.get('pid')} on {self.said.get('host')})"

    def how_it_ended(self) -> str:
        """All that is known here."""
        return "as its connection was closed; what its machine prints may say why"


class ConnectionQueue:
    """A `MessageQueue` over connections."""

    def enqueue(self, message: Any, wakers: list[SocketConnection], check: Callable[[], object]) -> None:
        """See `MessageQueue.enqueue`."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for waker in wakers:
            waker.send_bytes(data, check)

    def dequeue(self, reader: int, bed: SocketConnection, check: Callable[[], object]) -> Any:
        """See `MessageQueue.dequeue`."""
        while not bed.poll(0.1):
            check()
        return pickle.loads(bed.recv_bytes())


class HeardCounters(dict[int, int]):
    """At rank 0: what the others have sent of their counters."""

    is_shared = False

    def __missing__(self, index: int) -> int:
        return 0


class SentCounters(HeardCounters):
    """At another rank: each counter that it sets goes to rank 0, and those of others are not known."""

    def __init__(self, connection: SocketConnection) -> None:
        super().__init__()
        self._connection = connection

    def __setitem__(self, index: int, value: int) -> None:
        self._connection.send_bytes(pickle.dumps((index, PROGRESS, value)))


def make_group(
    config: EngineConfig, resolved_model: ResolvedModel, world: rendezvous.World, in_memory: Mapping[int, Any]
) -> Any:
    """The ranks as this one holds them. in_memory: by stage, see `groups_in_memory`."""
    assert resolved_model.hf_config is not None
    hidden_size, sizes = resolved_model.hf_config.hidden_size, (
        config.tensor_parallel_size, config.pipeline_parallel_size,
    )  # fmt: skip
    state = initialize_model_parallel(world.rank, *sizes)
    tp = make_tp_group(
        world.links, state.tp, exchange_elements(hidden_size), config.dtype, resolved_model.mm_encoder_tp_mode,
        in_memory.get(world.rank // config.tensor_parallel_size),
    )  # fmt: skip
    return tp if sizes[1] == 1 else NodeRanks(world.links, *sizes, tp, hidden_size, config.dtype)


def make_groups_in_memory(config: EngineConfig, resolved_model: ResolvedModel, ranks: tuple[int, ...]) -> Any:
    """For the ranks of one machine, see `groups_in_memory`."""
    assert resolved_model.hf_config is not None
    elements, mode = exchange_elements(resolved_model.hf_config.hidden_size), resolved_model.mm_encoder_tp_mode
    return groups_in_memory(
        ranks, config.tensor_parallel_size,
        lambda: TensorParallelGroup(config.tensor_parallel_size, elements, config.dtype, mode),
    )  # fmt: skip


def local_ranks(config: EngineConfig) -> tuple[int, ...]:
    """Those of this node: as many on each, node by node, as upstream."""
    count = config.tensor_parallel_size * config.pipeline_parallel_size // config.nnodes
    return tuple(range(config.node_rank * count, (config.node_rank + 1) * count))


def serve_rank(rank: int, parent: int, settings: bytes, address: tuple[str, int], in_memory: Mapping[int, Any]) -> None:
    """Come to rank 0, load, and serve its calls until it is gone.

    Args:
        parent: the process without which this one ends. settings: pickled engine arguments and `ResolvedModel`.
        address: of rank 0. in_memory: see `make_group`.

    Raises:
        RendezvousError: the ranks do not meet. EOFError, OSError: rank 0 has closed the connection.
    """
    config, resolved_model = pickle.loads(settings)
    world = rendezvous.join(
        rank, config.tensor_parallel_size * config.pipeline_parallel_size, *address,
        node_settings(config, resolved_model), config.distributed_timeout_seconds,
        said={"pid": os.getpid(), "host": socket.gethostname()}, transfer_timeout=transfer_timeout(config),
    )  # fmt: skip
    connection = world.control[0]
    group = make_group(config, resolved_model, world, in_memory)
    shared = (group, ConnectionQueue(), SentCounters(connection), None)
    WorkerProc(rank, parent, shared, connection).run(settings)  # type: ignore[arg-type]


def transfer_timeout(config: EngineConfig) -> float:
    """Rank 0 watches how the others get on, and names the one that does not; this comes after it."""
    return 2 * max(config.execute_model_timeout_seconds, _PATIENCE_S)


def node_worker_main(
    rank: int, parent: int, settings: bytes, address: tuple[str, int], in_memory: Mapping[int, Any]
) -> NoReturn:
    """Entry of the process of a rank, see `serve_rank`. Its exit code is 0 where rank 0 has ended, and 1 where the rank
    has never met it or has failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the node decides
    code = 0
    try:
        serve_rank(rank, parent, settings, address, in_memory)
    except RendezvousError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = 1
    except (EOFError, OSError):  # rank 0 has closed the connection
        pass
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    os._exit(code)


class NodeWorkers:
    """See `LocalWorkers`; the ranks of other nodes are started there.

    Raises:
        ValueError: this is another node than 0, or the port is taken.
    """

    def __init__(self, config: EngineConfig, resolved_model: ResolvedModel) -> None:
        if config.node_rank:
            raise ValueError(
                f"the engine is on node_rank=0; node_rank={config.node_rank} gives ranks to it: `mini-vllm serve MODEL "
                f"--nnodes {config.nnodes} --node-rank {config.node_rank} --headless`"
            )
        self.config, self.resolved_model = config, resolved_model
        self.world_size = config.tensor_parallel_size * config.pipeline_parallel_size
        self.settings = pickle.dumps((config, resolved_model))
        self.main_is_there = b"__main__" in self.settings
        self.rpc_broadcast_mq, self.counters = ConnectionQueue(), HeardCounters()
        self.workers: list[RemoteWorkerHandle] = []
        self._processes: list[Any] = []

    def start(self) -> None:
        """Wait for the ranks of all nodes.

        Raises:
            RendezvousError: which never came. RuntimeError: one of this node has ended.
        """
        config = self.config
        listener = self._bind()
        try:
            in_memory = self._start_processes(listener.getsockname()[:2])
            logger.info("rank 0 waits for %d others at %s:%d", self.world_size - 1, *listener.getsockname()[:2])
            world = rendezvous.lead(
                listener, self.world_size, node_settings(config, self.resolved_model),
                config.distributed_timeout_seconds, check=self._check, transfer_timeout=transfer_timeout(config),
            )  # fmt: skip
        finally:
            listener.close()
        for rank, connection in world.control.items():
            said = world.hellos[rank].get("said") or {}
            self.workers.append(RemoteWorkerHandle(rank, RemoteProc(connection), connection, said))
        self.links = world.links
        self.group = make_group(config, self.resolved_model, world, in_memory)

    def _bind(self) -> socket.socket:
        return rendezvous.bind(self.config.master_addr, self.config.master_port)

    def _start_processes(self, address: tuple[str, int]) -> Mapping[int, Any]:
        """Those of this node; the groups that share its memory."""
        ranks = local_ranks(self.config)
        in_memory = make_groups_in_memory(self.config, self.resolved_model, ranks)
        for rank in ranks[1:]:
            args = (rank, os.getpid(), self.settings, address, in_memory)
            self._processes.append(
                start_process(f"mini_vllm rank {rank}", node_worker_main, args, self.main_is_there)
            )  # fmt: skip
        return in_memory

    def _check(self) -> None:
        for proc in self._processes:
            if not proc.is_alive():
                raise RuntimeError(
                    f"{proc.name} (pid {proc.pid}) ended with exit code {proc.exitcode} before it met rank 0"
                )

    def end(self, owner: int) -> None:
        """Close the connections, which ends every rank. Nothing in a fork."""
        if os.getpid() != owner:
            return
        for worker in self.workers:
            worker.connection.close()
        if self.workers:
            self.links.close()
        end_processes(self._processes)
