"""How ranks on several machines find each other: all come to `master_addr:master_port`, where rank 0 waits.

    rank r    hello: who I am, what I serve, where I listen ->  rank 0
    rank 0    when all are there: the addresses of all, and a key ->  rank r
    rank r    the key ->  every lower rank

So there are two connections between rank 0 and each other rank, one for the engine's calls and one for arrays, and one
between each other two. Everything until then is JSON: nobody is believed before the key. A hello that differs is
answered with the reason, and rank 0 goes on waiting.

Upstream twins: `vllm/distributed/utils.py` (`StatelessProcessGroup.create`) and the TCPStore of torch.distributed.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mini_vllm.distributed.arrivals import LOOK_S, MAGIC, Arrivals, Refusals, RendezvousError, receive, send
from mini_vllm.distributed.tcp_links import SocketConnection, TcpLinks

_RETRY_S = 0.1


@dataclass
class World:
    """What a rank has after the rendezvous.

    Attributes:
        links: for arrays, to all other ranks. control: at rank 0, one to each other rank; elsewhere to rank 0 alone.
        addresses: host of each rank, as rank 0 sees it. hellos: at rank 0, what each said of itself.
    """

    rank: int
    world_size: int
    links: TcpLinks
    control: dict[int, SocketConnection]
    addresses: dict[int, str]
    hellos: dict[int, dict[str, Any]]


def bind(master_addr: str, master_port: int) -> socket.socket:
    """The socket at which rank 0 waits. Called before a process is started.

    Raises:
        ValueError: the port is taken, or the address is none of this machine.
    """
    sock = None
    try:
        family, _, _, _, address = socket.getaddrinfo(master_addr, master_port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
        return sock
    except OSError as error:
        if sock is not None:
            sock.close()
        raise ValueError(
            f"master_port={master_port} of master_addr={master_addr!r} cannot be had by node_rank=0: "
            f"{error.strerror or error}"
        ) from None


def lead(
    listener: socket.socket, world_size: int, settings: dict[str, Any], timeout: float, *,
    check: Callable[[], object] = lambda: None, transfer_timeout: float = 300.0,
) -> World:  # fmt: skip
    """Rank 0: wait for all others.

    Args:
        settings: names and values that all ranks must have, JSON; e.g. the model.
        timeout: seconds until the last must be there. check: called while waiting; may raise.

    Raises:
        RendezvousError: which ranks never came, and whom rank 0 has refused.
    """
    arrivals, refusals = Arrivals(listener, settings, world_size), Refusals()
    deadline = time.monotonic() + timeout
    while len(arrivals.hellos) < world_size - 1:
        for sock, hello in arrivals.take(check):
            refusals.note(arrivals.welcome(sock, hello))
        if time.monotonic() > deadline and len(arrivals.hellos) < world_size - 1:
            missing = [rank for rank in range(1, world_size) if rank not in arrivals.hellos]
            arrivals.refuse_all("rank 0 has given up: other ranks never came")
            raise RendezvousError(f"{_ranks(missing)} did not come to {_where(listener)} in {timeout:g} s{refusals}")
    key = secrets.token_hex(16)
    try:
        places = {r: [sock.getpeername()[0], arrivals.hellos[r]["port"]] for r, sock in arrivals.sockets.items()}
        for sock in arrivals.sockets.values():
            send(sock, {"addresses": places, "key": key})
        data = _accept(listener, key, set(arrivals.sockets), deadline + LOOK_S + timeout, check)
    except (RendezvousError, OSError) as error:
        arrivals.refuse_all("rank 0 has given up")
        if isinstance(error, RendezvousError):
            raise
        raise RendezvousError(f"a rank has come and gone: {error}") from None
    hosts = {0: listener.getsockname()[0], **{rank: place[0] for rank, place in places.items()}}
    links = TcpLinks(0, data, transfer_timeout, _names(hosts))
    control = {rank: SocketConnection(sock) for rank, sock in sorted(arrivals.sockets.items())}
    return World(0, world_size, links, control, hosts, arrivals.hellos)


def join(
    rank: int, world_size: int, master_addr: str, master_port: int, settings: dict[str, Any], timeout: float, *,
    said: dict[str, Any] | None = None, check: Callable[[], object] = lambda: None, transfer_timeout: float = 300.0,
) -> World:  # fmt: skip
    """Another rank: come to rank 0, which may be there later than this one.

    Args:
        settings, timeout, check: see `lead`. said: what rank 0 is told besides.

    Raises:
        RendezvousError: rank 0 never came, has refused this rank and says why, or another rank is lost.
    """
    deadline = time.monotonic() + timeout
    sock = _connect(master_addr, master_port, deadline, timeout, check)
    listener = socket.create_server((sock.getsockname()[0], 0), family=sock.family, backlog=128)
    try:
        hello = {"magic": MAGIC, "rank": rank, "world_size": world_size, "settings": settings, "said": said or {}}
        send(sock, {**hello, "port": listener.getsockname()[1]})
        answer = receive(sock, deadline + timeout, check)
        if "refused" in answer:
            raise RendezvousError(f"rank 0 at {master_addr}:{master_port} refuses rank {rank}: {answer['refused']}")
        key, places = answer["key"], {int(peer): place for peer, place in answer["addresses"].items()}
        data = {0: _call((master_addr, master_port), key, rank)}
        data.update({peer: _call(tuple(place), key, rank) for peer, place in places.items() if peer < rank})
        data.update(_accept(listener, key, {peer for peer in places if peer > rank}, deadline + timeout, check))
    except OSError as error:
        raise RendezvousError(f"rank {rank} cannot reach the other ranks: {error}") from None
    finally:
        listener.close()
    hosts = {0: master_addr, **{peer: place[0] for peer, place in places.items()}}
    links = TcpLinks(rank, data, transfer_timeout, _names(hosts))
    return World(rank, world_size, links, {0: SocketConnection(sock)}, hosts, {})


def _accept(
    listener: socket.socket, key: str, ranks: set[int], deadline: float, check: Callable[[], object]
) -> dict[int, socket.socket]:
    """The connections for arrays of these ranks, which know the key."""
    found: dict[int, socket.socket] = {}
    arrivals = Arrivals(listener, {}, 0)
    while ranks - found.keys():
        for sock, hello in arrivals.take(check):
            rank = hello.get("rank") if isinstance(hello, dict) else None
            told = str(hello.get("key")).encode(errors="replace") if type(rank) is int else b""
            if secrets.compare_digest(told, key.encode()) and rank in ranks:
                found[rank] = sock
            else:
                sock.close()
        if time.monotonic() > deadline:
            raise RendezvousError(f"{_ranks(sorted(ranks - found.keys()))} did not open the connection for arrays")
    return found


def _connect(host: str, port: int, deadline: float, timeout: float, check: Callable[[], object]) -> socket.socket:
    """To rank 0, again and again until it is there."""
    while True:
        check()
        try:
            sock = socket.create_connection((host, port), timeout=max(1.0, min(5.0, deadline - time.monotonic())))
        except OSError as error:
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"rank 0 did not come to {host}:{port} in {timeout:g} s: {error.strerror or error}"
                ) from None
            time.sleep(_RETRY_S)
            continue
        if sock.getsockname() == sock.getpeername():  # both ends are this socket: the port was free
            sock.close()
            continue
        return sock


def _call(address: Any, key: str, rank: int) -> socket.socket:
    sock = socket.create_connection(address, timeout=30.0)
    send(sock, {"key": key, "rank": rank})
    return sock


def _ranks(ranks: list[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _where(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname()[:2])


def _names(hosts: dict[int, str]) -> dict[int, str]:
    return {rank: f"rank {rank} at {host}" for rank, host in hosts.items()}
