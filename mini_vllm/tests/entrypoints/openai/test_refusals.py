"""What a client is told: a sentence of our own, before anything is computed, where its library looks."""

import json

import pytest

from mini_vllm.tests.entrypoints.openai.servers import Server, events

pytest.importorskip("prometheus_client", reason="needs the extra serve")

from mini_vllm.engine.exceptions import make_error
from mini_vllm.entrypoints.openai import server_utils
from mini_vllm.entrypoints.openai.limits import UNCOUNTED_POSTS
from mini_vllm.entrypoints.openai.own_words import refuse_half_surrogates, says_what_is_wrong
from mini_vllm.entrypoints.utils import create_error_response
from mini_vllm.utils.checks import require

SHORT = {"prompt": "hello", "max_tokens": 2, "temperature": 0}
HALF = r'"\ud800"'


@pytest.fixture(scope="module")
def server():
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with Server("toy", "--chat-template", template, "--h11-max-header-count", "20") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with server.client() as client:
        yield client


def computed(server):
    return server.call(server.engine.get_stats()).num_generation_tokens


def raised(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("path, rest", [
    ("/v1/responses", '"input": "hi", "max_output_tokens": 3, "user": '),
    ("/v1/responses", '"input": "hi", "max_output_tokens": 3, "metadata": {"a": "b"}, "instructions": '),
    ("/v1/completions", '"prompt": "hi", "max_tokens": 3, "request_id": '),
    ("/v1/completions", '"prompt": "hi", "max_tokens": 3, "cache_salt": '),
    ("/v1/chat/completions", '"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}], "model": '),
    ("/tokenize", '"prompt": '),
    ("/invocations", '"max_tokens": 3, "prompt": '),
])  # fmt: skip
def test_a_text_that_no_answer_can_repeat_is_refused_by_its_field_before_anything_is_computed(
    server, client, path, rest
):
    before = computed(server)
    field = rest.rstrip(": ").rpartition(", ")[2].strip('"')
    body = "{" + rest + HALF + "}"
    refused = client.post(path, content=body, headers={"Content-Type": "application/json"})
    message = refused.json()["error"]["message"]
    assert refused.status_code == 400 and message.startswith(f"{field} is not a text that UTF-8 can write")
    assert "codec" not in message and computed(server) == before


def test_where_half_a_pair_stands_is_said():
    for body, where in (
        (r'{"a": [{"b": "x\uD83D"}]}', r"a\[0\]\.b is not .* at character 1"),
        (r'{"\udc00": 1}', "a key of the body is not"),
    ):
        with pytest.raises(ValueError, match=where):
            refuse_half_surrogates(body.encode())
    refuse_half_surrogates(rb'{"a": "\ud83d\ude00 \\ud800"}')  # a pair, and six characters
    refuse_half_surrogates(rb'{"a": "\ud800')  # whoever reads it says what is wrong


def test_an_error_that_python_makes_is_no_sentence_for_a_client(caplog):
    ours = raised(require, False, "n", 0, "at least 1")
    assert says_what_is_wrong(ours) and create_error_response(ours).error.code == 400
    for function, *args in ((max, []), (int, "x"), (json.loads, "{"), ("é".encode, "ascii"), (len, 5)):
        error = raised(function, *args)
        told = create_error_response(error).error
        assert not says_what_is_wrong(error) and told.code == 500
        assert str(error) not in told.message and type(error).__name__ in told.message
    assert len(caplog.records) == 5 and all(each.exc_info for each in caplog.records), "the log has what is missing"
    assert says_what_is_wrong(raised(lambda: (_ for _ in ()).throw(make_error("builtins.ValueError", "too long"))))


@pytest.mark.parametrize("body, said", [
    ({"prompt": "hello", "truncate_prompt_tokens": 0}, "The decoder prompt cannot be empty"),
    ({"prompt": [97, 98], "truncate_prompt_tokens": 0}, "The decoder prompt cannot be empty"),
])  # fmt: skip
def test_a_prompt_that_is_cut_to_nothing(client, body, said):
    refused = client.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, said)


def test_a_part_of_a_message_is_an_object(client):
    refused = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": ["hi"]}]})
    assert refused.status_code == 400 and "messages[0].content: a part must be an object" in refused.text


UNREADABLE = [b"[" * 100_000 + b"]" * 100_000, b'{"prompt": "\xff"}', b"{", b"", b"nul"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_every_refusal_under_v1_has_a_message_where_the_client_looks(client, path):
    asked = [client.post(path, content=body, headers={"Content-Type": "application/json"}) for body in UNREADABLE]
    asked += [client.get("/v1/nothing"), client.request("DELETE", "/v1/models"), client.put(path, json=SHORT)]
    asked += [client.post(path, content=b"{}", headers={"Content-Type": "text/plain"})]
    for answer in asked:
        error = answer.json()["error"]
        assert 400 <= answer.status_code < 500 and error["message"], answer.text


def test_other_paths_keep_the_detail_of_the_framework(client):
    assert client.get("/nothing").json() == {"detail": "Not Found"}
    assert client.delete("/health").json() == {"detail": "Method Not Allowed"}


def test_headers_beyond_the_count_are_refused(client):
    """--h11-max-header-count; the client sends five of its own."""
    assert client.get("/health", headers={f"x-{i}": "1" for i in range(10)}).status_code == 200
    refused = client.get("/v1/models", headers={f"x-{i}": "1" for i in range(20)})
    assert refused.status_code == 431 and "at most 20 are allowed" in refused.json()["error"]["message"]


def test_whatever_computes_is_counted_and_needs_a_key():
    """By what is left out, so that a new route lies inside."""
    with Server("toy", "--api-key", "k", "--max-concurrent-requests", "1") as guarded:
        paths = guarded.app.openapi()["paths"]
        posts = {path for path, methods in paths.items() if "post" in methods}
        assert len(posts) > 9
        with guarded.client() as client:
            for path in sorted(posts - server_utils.OPEN_PATHS):
                refused = client.post(path, json=SHORT)
                assert (path, refused.status_code) == (path, 401)
                assert refused.json()["error"]["message"] == "Unauthorized"
            for path in ("/v1/models", "/nothing", "/v1/nothing"):
                assert client.get(path).status_code == 401
            for path in ("/health", "/version", "/metrics"):
                assert client.get(path).status_code == 200
        assert posts & server_utils.OPEN_PATHS == {"/ping", "/tokenize", "/detokenize"}
        limiter = guarded.app.middleware_stack
        while type(limiter).__name__ != "ConcurrencyMiddleware":
            limiter = limiter.app
        limiter.running += 1  # somebody else's request
        with guarded.client(headers={"Authorization": "Bearer k"}) as client:
            for path in sorted(posts - UNCOUNTED_POSTS):
                assert (path, client.post(path, json=SHORT).status_code) == (path, 429)
        limiter.running -= 1


@pytest.mark.parametrize("n", [2, 3])
def test_a_stream_of_several_echoed_choices_has_the_entries_of_the_whole(client, n):
    body = {"prompt": "A KV block", "echo": True, "logprobs": 1, "max_tokens": 3, "n": n, "temperature": 1, "seed": 1}
    whole = {c["index"]: c for c in client.post("/v1/completions", json=body).json()["choices"]}
    for _ in range(8):
        found = {index: {"text": "", "tokens": [], "token_logprobs": []} for index in range(n)}
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            for event in events(response)[:-1]:
                (choice,) = event["choices"]
                mine = found[choice["index"]]
                mine["text"] += choice["text"]
                for name in ("tokens", "token_logprobs"):
                    mine[name] += choice["logprobs"][name]
        for index, choice in whole.items():
            logprobs = choice["logprobs"]
            expected = {"text": choice["text"], "tokens": logprobs["tokens"]}
            assert {name: found[index][name] for name in expected} == expected
            assert found[index]["token_logprobs"][1:] == pytest.approx(logprobs["token_logprobs"][1:], abs=1e-5)


def test_an_error_inside_a_stream_names_what_failed(server, client, monkeypatch):
    from mini_vllm.entrypoints.openai.completion import stream

    monkeypatch.setattr(stream.StreamState, "_event", lambda *args: {}[1])
    with client.stream("POST", "/v1/completions", json={**SHORT, "stream": True}) as response:
        error, done = events(response)
    assert done == "[DONE]" and error["error"]["code"] == 500
    assert error["error"]["message"].startswith("Internal server error: KeyError while the request was answered")
