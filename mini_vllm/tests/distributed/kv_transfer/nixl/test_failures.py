"""What goes wrong between P and D: the request follows the policy, the engine lives, and no block is lost."""

import contextlib
import socket
import threading

import pytest

from mini_vllm import LLM
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import transports
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.listener import Listener
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.server import MAX_NOTIFICATION_BYTES, Offers
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import (
    LONG,
    decode,
    drain,
    drain_together,
    drained,
    ended,
    greedy,
    make,
    needs_pocket,
    prefill,
    tokens_of,
    wait_until,
)
from mini_vllm.tests.helpers import POCKET

pytestmark = needs_pocket
PROMPTS = [LONG, LONG[2:] + "Hello"]
TCP, SHM = transports.TcpTransport, transports.ShmTransport


@pytest.fixture(scope="module")
def plain():
    return tokens_of(LLM(str(POCKET)).generate(PROMPTS, greedy(3), use_tqdm=False))


@pytest.fixture(scope="module")
def engines():
    """P on both transports, and a D of each policy; a test leaves them without requests and without prefix hits."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "0")
        extra = {"backends": ["tcp", "shm"]}
        p, recompute, fail = make(extra=extra), make(policy="recompute", extra=extra), make(extra={"backends": ["shm"]})
    with ended(p, recompute, fail):
        yield p, recompute, fail


def serve_both(engines, change=lambda params: params):
    """Each D's results, all prompts; afterwards nothing is held."""
    p, *of_d = engines
    results = []
    for d in of_d:
        d.reset_prefix_cache()
        forget_handshakes(d)
        results.append(decode(d, PROMPTS, [change(params) for params in prefill(p, PROMPTS)], 3))
        drain(d)
    return results


def forget_handshakes(d):
    for remote in worker_half(d)._remotes.values():
        wait_until(d, lambda remote=remote: remote.is_idle)
        remote._agents = {}


def worker_half(llm):
    return llm.llm_engine.engine_core.model_runner.kv_connector.kv_connector.connector_worker


def check(results, plain):
    """Both policies, where every load has failed."""
    recompute, fail = results
    assert tokens_of(recompute) == plain
    assert [output.outputs[0].finish_reason for output in fail] == ["error"] * len(PROMPTS)
    assert all("could not be loaded" in output.outputs[0].stop_reason for output in fail)


def ends_at(handle):
    """A listener that handles connections like that."""
    sock = transports.bound_tcp_socket("localhost", 0)
    return Listener(sock, handle, "stranger")


def hangs(connection):
    connection.settimeout(5)
    while connection.recv(1000):
        pass


STRANGERS = {
    "closes": lambda connection: None,
    "hangs": hangs,
    "garbage": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n"),
    "endless": lambda connection: connection.sendall(b"mvkv\xff\xff\xff\xff"),
    "no_dict": lambda connection: connection.sendall(b"mvkv\0\0\0\x02[]"),
    "nothing": lambda connection: connection.sendall(b"mvkv\0\0\0\x02{}"),
    "deep": lambda connection: connection.sendall(b"mvkv\0\0\x40\0" + b"[" * 0x4000),
}


def some_slow(cases, fast):
    return [pytest.param(case, marks=() if case in fast else pytest.mark.slow, id=str(case)) for case in cases]


@pytest.mark.parametrize("kind", some_slow(STRANGERS, ["hangs", "garbage", "endless"]))
def test_whoever_answers_in_the_place_of_p(kind, engines, plain, clock, impatient):
    stranger = ends_at(STRANGERS[kind])
    try:
        check(serve_both(engines, lambda params: {**params, "remote_port": stranger.address[1]}), plain)
    finally:
        stranger.close()
    drain_together(clock, engines[0])


NAMED = [
    {"remote_engine_id": "somebody"},
    {"tp_size": 2},
    {"remote_request_id": "nobody"},
    {"remote_block_ids": [[1]]},
    {"remote_block_ids": [[3, 2, 1, 4]]},
    {"remote_block_ids": [[1, 1, 1, 1]]},
    {"remote_block_ids": [[0, 1, 2, 3]]},
    {"remote_block_ids": [[10**9, 1, 2, 3]]},
    {"remote_block_ids": [[1, 2, 3], [1, 2, 3]]},
    {"remote_host": "no such host."},
]


@pytest.mark.parametrize("change", some_slow(NAMED, [NAMED[0], NAMED[4]]))
def test_parameters_that_name_something_else(change, engines, plain, clock, impatient):
    def changed(params):
        names = {"remote_request_id": f"nobody-{params['remote_request_id']}"}  # the same name would be one source
        return {**params, **(names if "remote_request_id" in change else change)}

    recompute, fail = serve_both(engines, changed)
    assert tokens_of(recompute) == plain
    assert [output.outputs[0].finish_reason for output in fail] == ["error"] * len(PROMPTS)
    drain_together(clock, engines[0])


CANNOT_BE = [{"remote_port": "x"}, {"remote_block_ids": None}, {"remote_host": 3}, {"tp_size": 0}]


@pytest.mark.parametrize("change", some_slow(CANNOT_BE, CANNOT_BE[:1]))
def test_parameters_that_cannot_be_are_computed_here(change, engines, plain, clock):
    for outputs in serve_both(engines, lambda params: {**params, **change}):
        assert tokens_of(outputs) == plain
    drain_together(clock, engines[0])


def stops_in_the_middle(send):
    def sends(self, sock, freight, fill):
        whole = freight.num_layers
        half = transports.Freight(whole // 2, freight.shape, freight.dtype)
        send(self, sock, half, fill)
        raise OSError("killed")

    return sends


def sends_nan(send):
    return lambda self, sock, freight, fill: send(self, sock, freight, lambda layer, out: out.fill(float("nan")))


def stops_talking(send):
    return lambda self, sock, freight, fill: threading.Event().wait(0.5)


SLOW_WAY = pytest.param(stops_talking, marks=pytest.mark.slow)


@pytest.mark.parametrize("way", [stops_in_the_middle, sends_nan, SLOW_WAY])
def test_p_fails_in_the_middle_of_a_transfer(way, engines, plain, clock, impatient, monkeypatch):
    for transport in (TCP, SHM):
        monkeypatch.setattr(transport, "send", way(transport.send))
    check(serve_both(engines), plain)
    drain_together(clock, engines[0])


def test_messages_that_nobody_takes_are_bounded():
    offers = Offers()
    for message in ("x" * (1 << 20), ""):
        with pytest.raises(ValueError, match="messages wait already: no more fit"):
            for _ in range(1_000_000):
                offers.notify(message)
        assert sum(map(len, offers.take_notifications())) <= MAX_NOTIFICATION_BYTES
    offers.notify("HB:a")
    assert offers.take_notifications() == ["HB:a"] and offers.take_notifications() == []


def test_one_transfer_that_breaks_off_takes_no_other_along(engines, plain, clock, monkeypatch):
    p, _, d = engines
    d.reset_prefix_cache()
    calls, send = [], SHM.send

    def breaks_off_once(self, sock, freight, fill):
        calls.append(freight)
        if len(calls) == 1:
            raise OSError("reset by peer")
        send(self, sock, freight, fill)

    monkeypatch.setattr(SHM, "send", breaks_off_once)
    outputs = decode(d, PROMPTS, prefill(p, PROMPTS), 3)
    assert [output.outputs[0].finish_reason for output in outputs] == ["error", "length"]
    assert tokens_of(outputs)[1:] == plain[1:]
    drain_together(clock, p, d)


def test_other_hashes(engines, plain, clock, monkeypatch):
    for d in engines[1:]:
        monkeypatch.setattr(worker_half(d)._reader, "compat_hash", "0" * 64)
    check(serve_both(engines), plain)
    drain_together(clock, engines[0])


def test_other_models_do_not_fit_even_where_hashes_are_not_compared(caplog):
    loose = {"enforce_handshake_compat": False}
    with ended(make(dtype="float64"), make(extra=loose), make()) as (p, d, strict):
        for each in (d, strict):
            assert decode(each, PROMPTS[:1], prefill(p, PROMPTS[:1]))[0].outputs[0].finish_reason == "error"
            drain(each)
        assert "must have 16384 bytes in each of 8 layers" in caplog.text
        assert "NIXL compatibility hash mismatch. Local: " in caplog.text


def test_a_salt_and_another_prompt_are_not_mixed(engines, plain, clock):
    p, recompute, fail = engines
    for d in (recompute, fail):
        d.reset_prefix_cache()
    for prompt in ({"prompt": PROMPTS[0], "cache_salt": "a"}, {"prompt": PROMPTS[1]}):
        (params,) = prefill(p, [prompt])
        assert tokens_of(decode(recompute, PROMPTS[:1], [params], 3)) == plain[:1]
        assert decode(fail, PROMPTS[:1], [params])[0].outputs[0].finish_reason == "error"
        (params,) = prefill(p, [{"prompt": PROMPTS[0], "cache_salt": "a"}])
        good = decode(fail, [{"prompt": PROMPTS[0], "cache_salt": "a"}], [params], 3)
        assert tokens_of(good) == plain[:1]
    drain_together(clock, p, recompute, fail)


def test_strangers_at_the_doors_of_p_do_no_harm(engines, plain):
    p, _, d = engines
    server, scheduler = worker_half(p)._server, p.llm_engine.scheduler.connector.connector.connector_scheduler
    d.reset_prefix_cache()
    doors = [("localhost", scheduler.side_channel_port), tuple(server.addresses["tcp"])]
    socks = [socket.create_connection(door) for door in doors for _ in range(100)]
    for number, sock in enumerate(socks):
        payload = (b"GET / HTTP/1.1\r\n\r\n", b"mvkv\xff\xff\xff\xff", b"mvkv\0\0\0\x02{}", b"")[number % 4]
        with contextlib.suppress(OSError):  # turned away
            sock.sendall(payload)
            sock.shutdown(socket.SHUT_WR)
    for sock in socks:
        with contextlib.suppress(OSError):
            while sock.recv(1000):  # until P has let it go: as long as it has not, there may be no room for D
                pass
        sock.close()
    messages = ("HB:", "HB:nobody", "nobody:1", "x", ":", "0:0", "0:-1", "0:3000000000000", "é:²")
    for message in messages:
        worker_half(p)._offers.notify(message)
    outputs = decode(d, PROMPTS, prefill(p, PROMPTS), 3)
    assert tokens_of(outputs) == plain and {output.outputs[0].finish_reason for output in outputs} == {"length"}
    drained(p, d)
