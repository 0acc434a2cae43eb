"""Lab 16-05: many clients, one engine, one thread that may touch it."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import threading
import time
import weakref
from pathlib import Path

import pytest

from course.fixtures import patience
from course.labs import load
from mini_vllm import LLMEngine, SamplingParams, ToyModel
from mini_vllm.tokenizers.byte import ByteTokenizer

wire = load(Path(__file__).with_name("wire.py"))
LONG = 120  # tokens of a client who takes her time


class Watch:
    """An engine that notes who calls it. There is no end token among its 256, so answers have the length asked for."""

    def __init__(self, **settings):
        self.inner = LLMEngine(ToyModel(vocab_size=256), tokenizer=ByteTokenizer(), **settings)
        self.threads, self.steps, self.looks, self.overlaps, self.inside = {}, 0, 0, 0, 0
        self.pause, self.wanted, self.until = 0.0, 0, 0.0  # seconds a step takes at least; and see `wait_for`

    def __getattr__(self, name):
        value = getattr(self.inner, name)
        if name in ("add_request", "step", "abort_request"):
            return lambda *args, **kwargs: self.noted(name, value, args, kwargs)
        self.looks += name == "has_unfinished_requests"
        return value

    def wait_for(self, count):
        """No step is made before so many requests have come, unless they do not come at all."""
        self.wanted, self.until = count, time.monotonic() + patience(8.0)

    def noted(self, name, value, args, kwargs):
        self.wanted -= name == "add_request"
        if name == "step" and self.wanted > 0 and time.monotonic() < self.until:
            time.sleep(0.001)
            return []
        self.threads.setdefault(threading.get_ident(), set()).add(name)
        self.steps += name == "step"
        self.looks += 1
        self.overlaps += self.inside > 0
        self.inside += 1
        if name == "step":
            time.sleep(self.pause)
        try:
            return value(*args, **kwargs)
        finally:
            self.inside -= 1

    @property
    def used(self):
        pool = self.inner.scheduler.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()


ALONE = Watch()


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch):
    monkeypatch.setattr(wire.Client, "patience", patience(wire.Client.patience))


def text_of(prompt, max_tokens):
    """What the engine alone gives."""
    engine, text = ALONE.inner, ""
    engine.add_request("alone", prompt, SamplingParams(temperature=0, max_tokens=max_tokens))
    while engine.has_unfinished_requests():
        for output in engine.step():
            text = output.outputs[0].text
    return text


def body(prompt="Hello", max_tokens=20, **more):
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}


@contextlib.contextmanager
def running(impl, kind="serve", **settings):
    """(engine, listener) of a server of the learner's; it is closed behind the test."""
    engine, listener = Watch(**settings), wire.Listener()
    server = getattr(impl, kind)(engine, listener)
    try:
        yield engine, listener
    finally:
        server.close()


def soon(condition, seconds=20.0):
    """Whether it becomes true."""
    limit = time.monotonic() + patience(seconds)
    while not condition() and time.monotonic() < limit:
        time.sleep(0.005)
    return condition()


def events(data):
    """The JSON of each event; the last one must be [DONE]."""
    rows = [row for row in data.decode().split("\n\n") if row]
    assert all(row.startswith("data: ") for row in rows), rows[:3]
    assert rows[-1] == "data: [DONE]", f"the last event is {rows[-1]!r}"
    return [json.loads(row[6:]) for row in rows[:-1]]


# ---- the request ---------------------------------------------------------------------------------------------------

BAD = [
    (b"{", "the body is not JSON", None),
    (b"", "the body is not JSON", None),
    (b"\xff\xfe\x00", "the body is not JSON", None),
    (b"[" * 100_000, "the body is not JSON", None),
    (b"[1]", "the body must be a JSON object, got list", None),
    (b"null", "the body must be a JSON object, got NoneType", None),
    ({"max_tokens": 3}, "prompt must be a string that is not empty, got None", "prompt"),
    ({"prompt": 5}, "prompt must be a string that is not empty, got 5", "prompt"),
    ({"prompt": ""}, "prompt must be a string that is not empty, got ''", "prompt"),
    (body(max_tokens=True), "max_tokens must be a whole number of at least 1, got True", "max_tokens"),
    (body(max_tokens=0), "max_tokens must be a whole number of at least 1, got 0", "max_tokens"),
    (body(max_tokens=2.0), "max_tokens must be a whole number of at least 1, got 2.0", "max_tokens"),
    ({"prompt": "x", "temperature": "hot"}, "temperature must be a number, got 'hot'", "temperature"),
    ({"prompt": "x", "temperature": False}, "temperature must be a number, got False", "temperature"),
    ({"prompt": "x", "temperature": -1}, "temperature", "temperature"),
    ({"prompt": "x", "temperature": 10**400}, "", "temperature"),
    (body(max_tokens=10**40), "max_tokens", "max_tokens"),
    (body(stream="yes"), "stream must be true or false, got 'yes'", "stream"),
    (body(max_tokenz=3), "unknown field 'max_tokenz'", "max_tokenz"),
]


@pytest.mark.parametrize(("data", "message", "param"), BAD)
def test_a_bad_body_is_refused(impl, data, message, param):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(impl.BadRequest, match="^" + message.replace("[", "\\[")) as caught:
        impl.parse_request(data)
    assert caught.value.param == param


def test_a_good_body(impl):
    prompt, params, stream = impl.parse_request(b'{"prompt": "x"}')
    assert (prompt, params.max_tokens, params.temperature, stream) == ("x", 16, 1.0, False)
    data = json.dumps({"prompt": "é", "max_tokens": 3, "temperature": 0, "stream": True, "model": "any"}).encode()
    prompt, params, stream = impl.parse_request(data)
    assert (prompt, params.max_tokens, params.temperature, stream) == ("é", 3, 0, True)
    assert impl.parse_request(b'{"prompt": "x", "max_tokens": 1}')[1].max_tokens == 1, "one token is enough"


# ---- one client ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["serve_blocking", "serve"])
def test_a_whole_answer(impl, kind):
    with running(impl, kind) as (_, listener):
        status, data = listener.connect().ask(body()).response()
        answer = json.loads(data)
        assert (status, answer["object"]) == (200, "text_completion")
        assert answer["choices"] == [{"index": 0, "text": text_of("Hello", 20), "finish_reason": "length"}]
        again = json.loads(listener.connect().ask(body()).response()[1])
        assert again["choices"] == answer["choices"] and again["id"] != answer["id"], (
            "each request has an id of its own"
        )


@pytest.mark.parametrize("kind", ["serve_blocking", "serve"])
def test_a_stream_is_the_answer_in_pieces(impl, kind):
    with running(impl, kind) as (_, listener):
        status, data = listener.connect().ask(body(stream=True)).response()
        assert status == 200
        choices = [each["choices"][0] for each in events(data)]
        assert "".join(each["text"] for each in choices) == text_of("Hello", 20)
        assert len(choices) > 5, f"{len(choices)} events for 20 tokens: is it sent at the end?"
        assert [each["finish_reason"] for each in choices] == [None] * (len(choices) - 1) + ["length"]


@pytest.mark.parametrize("kind", ["serve_blocking", "serve"])
def test_other_routes(impl, kind):
    with running(impl, kind) as (_, listener):
        assert listener.connect().ask(b"", "GET", "/health").response()[0] == 200
        for method, path in (
            ("GET", "/v1/completions"), ("POST", "/v1/nothing"), ("GET", "/"), ("POST", "/health"),
            ("POST", "/v1/completions/more"),
        ):  # fmt: skip
            status, data = listener.connect().ask(body(), method, path).response()
            assert (status, json.loads(data)["error"]["type"]) == (404, "NotFoundError")


@pytest.mark.parametrize("kind", ["serve_blocking", "serve"])
def test_a_bad_request_harms_nobody(impl, kind):
    with running(impl, kind) as (_, listener):
        bad = [listener.connect().ask(data) for data, *_ in BAD[:6]]
        bad.append(listener.connect().ask(body(), length="many"))
        bad.append(listener.connect().ask(body("x" * 5000)))
        bad.append(listener.connect().ask(body("x" * 5000, stream=True)))
        listener.connect().leave()
        good = listener.connect().ask(body())
        for client in bad:
            status, data = client.response()
            error = json.loads(data)["error"]
            assert (status, error["type"], error["code"]) == (400, "BadRequestError", 400) and error["message"]
        assert "5000 tokens" in error["message"], "what the engine refuses is said in the engine's words"
        assert good.response()[0] == 200


# ---- many ----------------------------------------------------------------------------------------------------------


def test_steps_as_predicted(impl):
    found = []
    for kind in ("serve_blocking", "serve"):
        with running(impl, kind) as (engine, listener):
            if kind == "serve":
                engine.wait_for(8)
            clients = [listener.connect().ask(body("x" * 20, 100)) for _ in range(8)]
            assert [client.response()[0] for client in clients] == [200] * 8
            found.append(engine.steps)
    predicted = impl.predicted_steps()
    assert abs(predicted[0] - found[0]) <= 40 and abs(predicted[1] - found[1]) <= 40, (
        f"you predicted {predicted} steps; it took {found[0]} with serve_blocking and {found[1]} with serve"
    )


def test_eight_clients_at_once(impl):
    with running(impl) as (_, listener):
        prompts = [f"client {number}" * (number + 1) for number in range(8)]
        clients = [listener.connect().ask(body(p, 10 + 3 * n, stream=n % 2 == 0)) for n, p in enumerate(prompts)]
        for number, (prompt, client) in enumerate(zip(prompts, clients, strict=True)):
            _, data = client.response()
            rows = events(data) if number % 2 == 0 else [json.loads(data)]
            text = "".join(row["choices"][0]["text"] for row in rows)
            assert text == text_of(prompt, 10 + 3 * number), f"client {number} has another one's answer"


def test_the_second_client_does_not_wait(impl):
    with running(impl) as (engine, listener):
        engine.pause = 0.003
        for _ in range(3):  # the machine may be busy with something else, and A's steps go on meanwhile
            first = listener.connect().ask(body("A", 1900, stream=True))
            assert first.read_until(b"data: ")
            before = engine.steps
            assert listener.connect().ask(body("B", 3)).response()[0] == 200
            between = engine.steps - before
            first.leave()
            if between < 1200:
                break
        assert between < 1200, f"B waited {between} of A's 1900 steps: do requests take turns, instead of steps?"


def test_a_client_who_does_not_read_stops_nobody(impl):
    with running(impl) as (_, listener):
        lazy = listener.connect().ask(body("A", LONG, stream=True))
        assert lazy.read_until(b"data: ")
        assert listener.connect().ask(body("B", LONG)).response()[0] == 200
        assert lazy.read_until(b"[DONE]") and lazy.seen.count(b"data: ") == LONG + 1, "nothing of hers is lost"


def test_one_thread_owns_the_engine(impl):
    with running(impl) as (engine, listener):
        clients = [listener.connect().ask(body("x", 30, stream=True)) for _ in range(6)]
        clients[0].read_until(b"data: ")
        clients[0].leave()
        assert all(client.response()[0] == 200 for client in clients[1:])
        soon(lambda: engine.used == 0)
        calls = sorted(map(sorted, engine.threads.values()))
        assert (len(calls), engine.overlaps) == (1, 0), (
            f"{len(calls)} threads called the engine, which has no locks: {calls}"
        )


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_frees_blocks(impl, stream):
    with running(impl) as (engine, listener):
        engine.pause = 0.005
        client = listener.connect().ask(body("A", 1900, stream=stream))
        assert soon(lambda: engine.used > 0) and (not stream or client.read_until(b"data: "))
        client.leave()
        assert soon(lambda: engine.used == 0), f"{engine.used} blocks are held for a client who has left"
        assert engine.steps < 1500, f"{engine.steps} of 1900 tokens were computed for a client who left at once"
        assert listener.connect().ask(body()).response()[0] == 200


@pytest.mark.parametrize("kind", ["serve_blocking", "serve"])
def test_who_has_left_is_in_nobodys_answer(impl, kind):
    with running(impl, kind) as (engine, listener):
        engine.pause = 0.001
        client = listener.connect().ask(body("A", 1900, stream=True))
        assert client.read_until(b"data: ")
        client.leave()
        answer = json.loads(listener.connect().ask(body()).response()[1])
        assert answer["choices"][0]["text"] == text_of("Hello", 20), "what the one who left had asked for goes on"


def test_leaving_the_queue(impl):
    """Of a request that waits for a seat there is no output, and so nothing to send that would fail."""
    with running(impl, max_num_seqs=1) as (engine, listener):
        engine.pause = 0.004
        first = listener.connect().ask(body("A", 1900, stream=True))
        assert first.read_until(b"data: ")
        second = listener.connect().ask(body("B", 3))
        assert soon(lambda: engine.inner.get_num_unfinished_requests() == 2)
        second.leave()
        assert soon(lambda: engine.inner.get_num_unfinished_requests() == 1) and engine.steps < 1850, (
            "B has left, and waits for A's seat nevertheless"
        )
        first.leave()


def test_a_slow_engine_sends_nothing_twice(impl):
    with running(impl) as (engine, listener):
        engine.pause = 0.12
        choices = [
            each["choices"][0] for each in events(listener.connect().ask(body("A", 2, stream=True)).response()[1])
        ]
        assert "".join(each["text"] for each in choices) == text_of("A", 2)
        assert len(choices) <= 2, f"{len(choices)} events, and two outputs: {choices}"


def test_nothing_is_kept_of_what_is_over(impl):
    connections, asked = [], 24

    class Noting(wire.Listener):
        def accept(self):
            if (connection := super().accept()) is not None:
                connections.append(weakref.ref(connection))
            return connection

    listener = Noting()
    server = impl.serve(Watch(), listener)
    try:
        for _ in range(asked):
            assert listener.connect().ask(body(max_tokens=1)).response()[0] == 200
        assert soon(lambda: gc.collect() >= 0 and sum(each() is not None for each in connections) < 12), (
            f"{sum(each() is not None for each in connections)} connections of {asked} are still held by something"
        )
        assert len(server.threads) < 12, f"{len(server.threads)} threads for {asked} requests that are over"
    finally:
        server.close()


def test_without_work_nothing_runs(impl):
    with running(impl) as (engine, listener):
        assert listener.connect().ask(body()).response()[0] == 200
        assert soon(lambda: engine.used == 0)
        time.sleep(0.05)
        before = engine.looks
        time.sleep(0.1)
        assert engine.looks - before < 10, f"{engine.looks - before} looks at an engine that has nothing to do"
        lazy = listener.connect().ask(body("A", LONG, stream=True))
        assert lazy.read_until(b"data: ") and soon(lambda: engine.used == 0)
        time.sleep(0.05)
        before = engine.looks
        time.sleep(0.1)
        assert engine.looks - before < 20, f"{engine.looks - before} looks while one who has all her tokens has to read"
        assert lazy.read_until(b"[DONE]")


def test_close_ends_everything(impl):
    before = set(threading.enumerate())
    with running(impl, max_num_seqs=1) as (engine, listener):
        engine.pause = 0.004
        busy = listener.connect().ask(body("A", 1900, stream=True))
        assert busy.read_until(b"data: ")
        waiting = listener.connect().ask(body("B", 3))
        assert soon(lambda: engine.inner.get_num_unfinished_requests() == 2)
        silent = listener.connect()
    left = [each.name for each in set(threading.enumerate()) - before if each.is_alive()]
    assert left == [], f"threads that are left: {left}"
    assert engine.used == 0 and not busy.read_until(b"[DONE]")
    assert not silent.read_until(b"x") and not waiting.read_until(b"length"), (
        "whoever waits is let go, for words or for a seat"
    )


def test_close_in_the_moment_of_a_connection(impl):
    """`accept` has taken a connection when the server is closed, and gives it a moment after."""

    class Late(wire.Listener):
        taken, closed = threading.Event(), threading.Event()

        def accept(self):
            if (connection := super().accept()) is not None:
                self.taken.set()
                self.closed.wait(patience(20.0))
                time.sleep(0.1)
            return connection

        def close(self):
            super().close()
            self.closed.set()

    before, listener = set(threading.enumerate()), Late()
    server = impl.serve(Watch(), listener)
    silent = listener.connect()
    assert listener.taken.wait(patience(20.0))
    server.close()
    left = [each.name for each in set(threading.enumerate()) - before if each.is_alive()]
    assert left == [] and not silent.read_until(b"x"), f"threads that are left: {left}"


def test_over_tcp(impl):
    """The same functions behind a real socket (where the machine gives one)."""
    try:
        listener = wire.TcpListener()
    except OSError:
        pytest.skip("no sockets here")
    engine = Watch()
    server = impl.serve(engine, listener)
    try:
        there = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=patience(20.0))
        there.request("POST", "/v1/completions", json.dumps(body(stream=True)))
        answer = there.getresponse()
        assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream"
        text = "".join(each["choices"][0]["text"] for each in events(answer.read()))
        assert text == text_of("Hello", 20)
    finally:
        server.close()
