"""Ranks find each other at an address, and whoever does not belong there is told why."""

import json
import socket
import struct
import threading

import pytest

from mini_vllm.distributed import rendezvous
from mini_vllm.distributed.arrivals import MAGIC, Arrivals, RendezvousError
from mini_vllm.tests.distributed.worlds import meet


def test_all_ranks_are_linked_and_rank_0_can_call_each():
    def task(world):
        if world.rank:
            said = world.control[0].recv_bytes()
            world.control[0].send_bytes(said * 2)
            return sorted(world.links.sockets), said
        for rank, control in world.control.items():
            control.send_bytes(b"%d" % rank)
        answers = [control.recv_bytes() for control in world.control.values()]
        return sorted(world.links.sockets), answers, world.addresses

    first, *others = meet(4, task)
    assert first == ([1, 2, 3], [b"11", b"22", b"33"], dict.fromkeys(range(4), "127.0.0.1"))
    assert others == [([0, 2, 3], b"1"), ([0, 1, 3], b"2"), ([0, 1, 2], b"3")]


def test_a_rank_that_never_comes_is_named():
    listener = rendezvous.bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with pytest.raises(RendezvousError, match=rf"ranks 1, 2 did not come to 127.0.0.1:{port} in 0.05 s$"):
        rendezvous.lead(listener, 3, {}, 0.05)
    listener.close()
    with pytest.raises(RendezvousError, match=f"rank 0 did not come to 127.0.0.1:{port} in 0.05 s"):
        rendezvous.join(1, 3, "127.0.0.1", port, {}, 0.05)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ValueError, match=f"master_port={port} of master_addr='127.0.0.1' cannot be had by node_ran"
        ):
            rendezvous.bind("127.0.0.1", port)
    with pytest.raises(ValueError, match=r"master_addr='192.0.2.1' cannot be had"):
        rendezvous.bind("192.0.2.1", 1234)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "other"}, "rank 1 has model='other', rank 0 has 'm'"),
        ({"model": "m", "dtype": "float64"}, "rank 1 has dtype='float64', rank 0 has None"),
    ],
)
def test_a_rank_that_serves_something_else_is_refused(settings, message):
    first, second = meet(2, lambda world: None, {1: settings}, timeout=0.3)
    assert isinstance(second, RendezvousError) and isinstance(first, RendezvousError)
    assert str(second).endswith(f"refuses rank 1: {message}")
    assert "rank 1 did not come" in str(first) and str(first).endswith(f"; refused: 127.0.0.1: {message}")


def _come(rank, size, port, found):
    try:
        found.append(rendezvous.join(rank, size, "127.0.0.1", port, {}, 30.0))
    except RendezvousError as error:
        found.append(error)


def test_strangers_and_wrong_numbers_hold_up_nobody():
    listener = rendezvous.bind("127.0.0.1", 0)
    port, refused, found = listener.getsockname()[1], [], []
    silent = socket.create_connection(("127.0.0.1", port))
    http = socket.create_connection(("127.0.0.1", port))
    http.sendall(b"GET / HTTP/1.1\r\n\r\n")
    gone = socket.create_connection(("127.0.0.1", port))
    gone.close()
    worlds = []
    leader = threading.Thread(target=lambda: worlds.append(rendezvous.lead(listener, 2, {}, 30.0)), daemon=True)
    leader.start()
    _come(1, 3, port, refused)
    _come(2, 2, port, refused)
    _come(1, 2, port, found)
    leader.join(60)
    assert "it has 3 ranks, rank 0 has 2" in str(refused[0]) and "there is no rank 2 to come, of 2" in str(refused[1])
    assert found[0].rank == 1 and worlds[0].links.sockets.keys() == {1}
    for world in (found[0], worlds[0]):
        world.links.close()
    for sock in (silent, http, listener):
        sock.close()


def _said(listener, data):
    """A stranger who has said this."""
    sock = socket.create_connection(listener.getsockname())
    sock.sendall(struct.pack("<I", len(data)) + data)
    return sock


@pytest.mark.parametrize(
    "data",
    [b"[" * 60_000, b'{"rank": [], "key": 1}', b'{"rank": {}}', b'{"rank": 1, "key": "\\ud800"}', b'{"rank": true}'],
)
def test_garbage_at_the_door_for_arrays_is_turned_away(data):
    listener = rendezvous.bind("127.0.0.1", 0)
    strange, friend = _said(listener, data), _said(listener, json.dumps({"rank": 1, "key": "k"}).encode())
    found = rendezvous._accept(listener, "k", {1}, float("inf"), lambda: None)
    assert found.keys() == {1}
    for sock in (strange, friend, listener, *found.values()):
        sock.close()


@pytest.mark.parametrize("port", [True, 0, -1, 1 << 16, 10**30, "1"])
def test_a_hello_with_a_port_that_is_none_is_refused(port):
    listener = rendezvous.bind("127.0.0.1", 0)
    hello = {"magic": MAGIC, "rank": 1, "world_size": 2, "settings": {}, "port": port}
    assert "this is no" in Arrivals(listener, {}, 2)._refusal(hello)
    assert Arrivals(listener, {}, 2)._refusal(hello | {"port": 1024}) is None
    listener.close()


def test_many_who_say_nothing_do_not_keep_a_rank_out():
    listener = rendezvous.bind("127.0.0.1", 0)
    silent = [socket.create_connection(listener.getsockname()) for _ in range(70)]
    friend = _said(listener, json.dumps({"rank": 1, "key": "k"}).encode())
    tries = iter(range(1000))
    found = rendezvous._accept(listener, "k", {1}, float("inf"), lambda: next(tries))
    assert found.keys() == {1}
    for sock in (*silent, friend, listener, *found.values()):
        sock.close()


def test_a_rank_that_comes_and_goes_before_the_others_are_there(monkeypatch):
    def gone(sock, message):
        raise BrokenPipeError(32, "Broken pipe")

    listener = rendezvous.bind("127.0.0.1", 0)
    hello = {"magic": MAGIC, "rank": 1, "world_size": 2, "settings": {}, "port": 1024}
    rank = _said(listener, json.dumps(hello).encode())
    monkeypatch.setattr(rendezvous, "send", gone)
    with pytest.raises(RendezvousError, match=r"a rank has come and gone: .*Broken pipe"):
        rendezvous.lead(listener, 2, {}, 30.0)
    for sock in (rank, listener):
        sock.close()


def test_two_of_the_same_number():
    listener = rendezvous.bind("127.0.0.1", 0)
    port, found = listener.getsockname()[1], []
    threads = [threading.Thread(target=_come, args=(1, 3, port, found), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(RendezvousError, match=r"rank 2 did not come .* refused: 127.0.0.1: rank 1 is there already"):
        rendezvous.lead(listener, 3, {}, 1.0)
    for thread in threads:
        thread.join(60)
    assert sorted("is there already" in str(error) for error in found) == [False, True]
    listener.close()
