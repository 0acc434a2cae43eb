"""What the proxy does where an engine fails, hangs or breaks off, and where the client leaves."""

import asyncio
import json
import time

import httpx
import pytest

from mini_vllm.entrypoints.disagg_proxy.instances import watch_health
from mini_vllm.entrypoints.disagg_proxy.serving import EngineStream
from mini_vllm.tests.entrypoints.disagg_proxy.engines import (
    BODY,
    DIES,
    FINE,
    KEPT,
    REFUSES,
    STREAM,
    Engines,
    Pieces,
    ask,
    fine_decode,
    fine_prefill,
    pair,
    run,
)

BROKEN = [REFUSES, DIES, *(lambda body, said=said: said for said in [(503, {}), (429, {}), (200, 3)])]
BROKEN.append(lambda body: (200, {"kv_transfer_params": 7}))


@pytest.mark.parametrize("broken", BROKEN)
def test_where_p_fails_another_p_is_asked_then_d_computes_the_prompt(broken):
    answer, engines, _ = ask({"p1": broken, "p2": fine_prefill, "d": fine_decode})
    assert answer.status_code == 200 and engines.hosts == ["p1", "p2", "d"]
    assert engines.asked[2][1]["kv_transfer_params"] == KEPT
    answer, engines, app = ask({"p": broken, "d": fine_decode})
    assert answer.status_code == 200 and engines.hosts == ["p", "d"] and engines.asked[1][1] == BODY
    assert app.state.proxy.ways == {"recomputed": 1}
    many = {"p1": broken, "p2": broken, "p3": fine_prefill, "d": fine_decode}
    assert ask(many)[1].hosts == ["p1", "p2", "d"], "max_attempts is 2"
    assert ask(many, flags=["--max-attempts", "1"])[1].hosts == ["p1", "d"]


def test_or_the_client_is_told_who_failed_and_how():
    policy = ["--prefill-failure-policy", "fail"]
    for broken, status, said in [
        (REFUSES, 503, "the prefill engine http://p:80 takes no connection"),
        (DIES, 502, "the prefill engine http://p:80 broke off: reset"),
        (lambda body: (200, 3), 502, "the prefill engine http://p:80 sent what is no answer with kv_transfer_params"),
    ]:
        answer, engines, app = ask({"p": broken, "d": fine_decode}, flags=policy)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], engines.hosts) == (status, status, ["p"])
        assert said in error["message"] and app.state.proxy.ways == {"failed": 1}


def test_silence_ends_at_the_timeout():
    answer, engines, _ = ask({**FINE, "p": lambda body: None}, flags=["--prefill-timeout", "0.05"])
    assert answer.status_code == 200 and engines.hosts == ["p", "d"]
    timeout = ["--decode-timeout", "0.05"]
    answer, _, _ = ask({**FINE, "d": lambda body: None}, flags=timeout)
    assert answer.status_code == 504
    assert "the decode engine http://d:80 was silent for 0.05 s" in answer.json()["error"]["message"]
    cut = [STREAM[0], None]
    for _ in range(50):  # a machine may be so busy that the first event comes too late as well
        answer, _, _ = ask({**FINE, "d": lambda body: (200, cut)}, {**BODY, "stream": True}, flags=timeout)
        if answer.status_code == 200:
            break
    first, error, done = answer.content.split(b"\n\n")[:3]
    assert (first + b"\n\n", done) == (STREAM[0], b"data: [DONE]") and b"was silent for 0.05 s" in error


def test_keys_and_values_are_fetched_once():
    """A D that never saw the request has fetched nothing; one that broke off may have: the next one computes."""
    for broken, second in [(REFUSES, KEPT), (DIES, None), (lambda body: (500, {}), None)]:
        answer, engines, _ = ask({"p": fine_prefill, "d1": broken, "d2": fine_decode})
        assert answer.status_code == 200 and engines.hosts == ["p", "d1", "d2"]
        assert engines.asked[2][1].get("kv_transfer_params") == second


def test_the_only_d_may_compute_what_it_could_not_fetch():
    def cannot_fetch(body):
        return (500, {"error": "load"}) if "kv_transfer_params" in body else fine_decode(body)

    answer, engines, _ = ask({**FINE, "d": cannot_fetch})
    assert answer.status_code == 200 and engines.hosts == ["p", "d", "d"]
    always = {**FINE, "d": lambda body: (500, {"error": "always"})}
    answer, engines, _ = ask(always)
    assert (answer.status_code, answer.json()) == (500, {"error": "always"}) and engines.hosts == ["p", "d", "d"]
    assert ask(always, {**BODY, "n": 2})[1].hosts == ["d"], "nothing was fetched: it would fail again"
    bad = [b'data: {"error":{"message":"load"}}\n\n', b"data: [DONE]\n\n"]
    answer, engines, _ = ask(
        {**FINE, "d": lambda body: (200, bad) if "kv_transfer_params" in body else fine_decode(body)},
        {**BODY, "stream": True},
    )
    assert answer.content == b"".join(STREAM) and engines.hosts == ["p", "d", "d"]


def test_a_stream_that_breaks_before_its_first_event_begins_elsewhere_and_later_is_cut():
    for pieces in ([httpx.ReadError("reset")], [STREAM[0][:9], httpx.ReadError("reset")], [STREAM[0][:9]]):
        answer, engines, app = ask(
            {"p": fine_prefill, "d1": lambda body, p=pieces: (200, p), "d2": fine_decode}, {**BODY, "stream": True}
        )
        assert answer.content == b"".join(STREAM) and engines.hosts == ["p", "d1", "d2"]
        assert [each.in_flight for each in app.state.proxy.decode.all] == [0, 0]
        assert all(stream.is_closed for stream in engines.streams)
    for last in (httpx.ReadError("reset"), STREAM[1][:9]):
        pieces = [STREAM[0] + STREAM[1][:5], last]
        answer, engines, _ = ask({**FINE, "d": lambda body, p=pieces: (200, p)}, {**BODY, "stream": True})
        first, error, done, rest = answer.content.split(b"\n\n")
        assert (first + b"\n\n", done, rest) == (STREAM[0], b"data: [DONE]", b"")
        message = json.loads(error.removeprefix(b"data: "))["error"]["message"]
        assert message.startswith("the decode engine http://d:80") and message.endswith("the answer is cut")


def test_a_client_that_leaves_closes_both_sides():
    engines = Engines(p=lambda body: None, d=lambda body: (200, [STREAM[0], None]))

    async def main():
        proxy = pair(engines)
        waiting = asyncio.ensure_future(proxy.answer("/v1/completions", BODY, {}))
        while not proxy.prefill.all[0].in_flight:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not proxy.prefill.all[0].in_flight and proxy.decode.all[0].num_requests == 0
        assert engines.num_silent == 0, "the connection to P is still open"
        engines.engines["p"] = fine_prefill
        for num_events in (0, 1):  # gone before it asks for an event, too
            stream = await proxy.answer("/v1/completions", {**BODY, "stream": True}, {})
            assert isinstance(stream, EngineStream)
            for _ in range(num_events):
                assert await anext(stream) == STREAM[0]
            await stream.aclose()
            assert engines.streams[-1].is_closed and not proxy.decode.all[0].in_flight

    run(main)


def test_a_client_that_leaves_does_not_break_the_closing_of_a_connection_off():
    """A server cancels a stream again and again until it has ended; the connection is closed in the meantime."""

    class Slow(Pieces):
        async def __aiter__(self):
            yield STREAM[0]
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0)  # as httpcore, which closes the socket here
                await asyncio.sleep(0)
                closed.append(self)

    engines, closed = Engines(p=fine_prefill, d=lambda body: (200, STREAM)), []

    async def main():
        proxy = pair(engines)
        stream = await proxy.answer("/v1/completions", {**BODY, "stream": True}, {})
        assert isinstance(stream, EngineStream)
        await anext(stream)
        stream.exchange._pieces, stream.exchange._rest = aiter(Slow([])), b""
        await anext(stream)
        leaving = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        while not leaving.done():
            leaving.cancel()
            await asyncio.sleep(0)
        await stream.aclose()
        for _ in range(10):
            await asyncio.sleep(0)
        assert closed

    run(main)


def test_who_hangs_is_left_by_those_who_wait_and_comes_back():
    """An engine that is stopped keeps its sockets open: only its health tells."""
    hangs = True

    class Health(Engines):
        async def handle_async_request(self, request):
            if request.url.path == "/health" and request.url.host == "d1" and hangs:
                raise httpx.ReadTimeout("silent")
            return await super().handle_async_request(request)

    async def main():
        nonlocal hangs
        engines = Health(p=fine_prefill, d1=lambda body: None, d2=fine_decode)
        proxy = pair(engines, decode=("d1", "d2"))
        hung = proxy.decode.all[0]
        waiting = asyncio.ensure_future(proxy.answer("/v1/completions", BODY, {}))
        while not hung.in_flight:
            await asyncio.sleep(0)
        watch = asyncio.ensure_future(watch_health(proxy.decode.all, 0.001, 1.0))
        assert (await waiting).status == 200 and engines.hosts == ["p", "d1", "d2"]
        assert not hung.is_up and proxy.decode.num_up == 1 and "did not answer" in hung.status()["why"]
        assert proxy.decode.choose([proxy.decode.all[1]]) is None
        hangs = False
        deadline = time.monotonic() + 300
        while not hung.is_up:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)
        watch.cancel()

    run(main)
