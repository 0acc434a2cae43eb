"""The way of a request through the proxy: who is asked with what, and what the client is told."""

import httpx
import pytest

from mini_vllm.entrypoints.disagg_proxy.api_server import build_app
from mini_vllm.entrypoints.disagg_proxy.cli_args import parse_proxy_args
from mini_vllm.entrypoints.disagg_proxy.instances import parse_url
from mini_vllm.entrypoints.disagg_proxy.serving import goes_alone, prefill_body
from mini_vllm.tests.entrypoints.disagg_proxy.engines import (
    BODY,
    FINE,
    KEPT,
    REFUSES,
    STREAM,
    Engines,
    ask,
    fine_decode,
    fine_prefill,
    pair,
    run,
)


def test_the_prompt_goes_to_p_and_the_request_with_ps_answer_to_d():
    given = {"Authorization": "Bearer k", "X-Request-Id": "mine", "Cookie": "c"}
    answer, engines, app = ask(FINE, {**BODY, "min_tokens": 2}, headers=given)
    assert (answer.status_code, answer.json()) == (200, {"text": "an answer"})
    (_, prefill, first), (_, decode, second) = engines.asked
    assert engines.hosts == ["p", "d"]
    assert (prefill["max_tokens"], prefill["stream"], "min_tokens" in prefill) == (1, False, False)
    assert prefill["kv_transfer_params"]["do_remote_decode"] is True
    assert decode == {**BODY, "min_tokens": 2, "kv_transfer_params": KEPT}
    for headers in (first, second):
        assert (headers["authorization"], headers["x-request-id"]) == ("Bearer k", "mine") and "cookie" not in headers
    assert app.state.proxy.ways == {"disaggregated": 1}
    assert {each.in_flight for each in app.state.proxy.prefill.all + app.state.proxy.decode.all} == {0}


def test_a_chat_and_a_stream_go_the_same_way():
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 9}
    answer, engines, _ = ask(FINE, {**chat, "stream": True, "stream_options": {"include_usage": True}},
                             "/v1/chat/completions")  # fmt: skip
    assert answer.content == b"".join(STREAM) and answer.headers["content-type"].startswith("text/event-stream")
    prefill = engines.asked[0][1]
    assert prefill["max_completion_tokens"] == 1 and "stream_options" not in prefill and prefill["stream"] is False
    assert engines.streams[0].is_closed


def test_an_engine_without_params_leaves_ds_request_as_it_was():
    _, engines, _ = ask({**FINE, "p": lambda body: (200, {"choices": []})})
    assert engines.asked[1][1] == BODY


def test_what_is_wrong_with_the_request_is_ps_word():
    refusal = {"error": {"message": "max_tokens"}}
    answer, engines, _ = ask({**FINE, "p": lambda body: (400, refusal)})
    assert (answer.status_code, answer.json(), engines.hosts) == (400, refusal, ["p"])


def test_what_one_prompts_keys_and_values_do_not_serve_goes_to_d_alone():
    for more in ({"n": 2}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"prompt_logprobs": 0}, {"echo": True},
                 {"use_beam_search": True}, {"max_tokens": 0}):  # fmt: skip
        _answer, engines, app = ask(FINE, {**BODY, **more})
        assert engines.hosts == ["d"] and engines.asked[0][1] == {**BODY, **more}, more
        assert app.state.proxy.ways == {"decode_alone": 1}
    for more in ({"n": None}, {"n": 1}, {"prompt": ["a"]}, {"prompt": [[1, 2]]}, {"prompt": [1, 2]}, {"echo": False}):
        assert not goes_alone({**BODY, **more}, 0), more
    assert goes_alone(BODY, 40) and not goes_alone(BODY, 20)
    assert prefill_body({**BODY, "stream": True})["prompt"] == BODY["prompt"]


def test_without_p_every_request_goes_to_d_and_without_d_none():
    answer, engines, _ = ask({"d": fine_decode})
    assert answer.status_code == 200 and engines.hosts == ["d"]
    answer, engines, app = ask({**FINE, "d": REFUSES})
    assert app.state.proxy.decode.num_up == 0, "nobody else is to try"
    assert answer.status_code == 503 and "takes no connection" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "JSON decode error"),
        (b"[]", 400, "valid dictionary"),
        ({**BODY, "kv_transfer_params": KEPT}, 400, "kv_transfer_params is what the proxy sets"),
        ({**BODY, "prompt": "x" * 999}, 413, "larger than 600 bytes"),
    ],
)
def test_a_bad_request_asks_nobody(body, status, said):
    answer, engines, _ = ask(FINE, body, flags=["--max-request-body-size", "600"])
    assert answer.status_code == status and said in answer.text and not engines.asked


def test_routing():
    engines = Engines(p=fine_prefill, d1=fine_decode, d2=fine_decode, d3=fine_decode)

    async def main():
        proxy = pair(engines, decode=("d1", "d2", "d3"))
        for _ in range(4):
            await proxy.answer("/v1/completions", BODY, {})
        assert [host for host in engines.hosts if host != "p"] == ["d1", "d2", "d3", "d1"]
        least = pair(engines, decode=("d1", "d2", "d3"), routing="least_in_flight")
        streams = [await least.answer("/v1/completions", {**BODY, "stream": True}, {}) for _ in range(3)]
        assert [each.in_flight for each in least.decode.all] == [1, 1, 1]
        await streams[1].aclose()
        await least.answer("/v1/completions", BODY, {})
        assert engines.hosts[-1] == "d2"
        for stream in streams:
            await stream.aclose()
        assert [each.in_flight for each in least.decode.all] == [0, 0, 0]

    run(main)


def test_the_routes_that_say_how_it_is():
    engines = Engines(**FINE)
    engines.engines["d"] = lambda body: (200, {"data": [{"id": "pocket"}]})
    app = build_app(parse_proxy_args(["--prefill", "p:80", "--decode", "d:80"]), engines)

    async def main():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy") as client:
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "pocket"
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/healthcheck")).json() == {
                "status": "ok", "prefill_instances": 1, "decode_instances": 1,
            }  # fmt: skip
            app.state.proxy.decode.all[0].mark_down("gone", hangs=False)
            assert (await client.get("/health")).status_code == 503
            models = await client.get("/v1/models")
            assert models.status_code == 503 and "no decode engine is there (http://d:80: gone)" in models.text
            status = (await client.get("/status")).json()
            assert [each["is_up"] for each in status["instances"]] == [True, False] and status["ways"] == {}

    run(main)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--decode", "localhost"], "--decode must be HOST:PORT"),
        (["--decode", "ftp://a:1"], "--decode must be HOST:PORT"),
        (["--decode", "a:99999"], "--decode must be HOST:PORT"),
        (["--decode", "a:1/v1"], "--decode must be HOST:PORT"),
        (["--decode", "a:1", "a:1"], "each engine once"),
        (["--decode", "a:1", "--prefill", "a:1"], "not under --prefill"),
        (["--decode", "a:1", "--max-attempts", "0"], "--max-attempts must be at least 1"),
        (["--decode", "a:1", "--decode-timeout", "nan"], "--decode-timeout must be seconds above 0"),
        (["--decode", "a:1", "--min-prompt-chars", "-1"], "--min-prompt-chars must be at least 0"),
    ],
)
def test_wrong_flags_are_named(words, said):
    with pytest.raises(ValueError, match=said):
        parse_proxy_args(words)


def test_urls():
    assert parse_url("--decode", "localhost:8100") == parse_url("--decode", "http://localhost:8100/")
    assert parse_url("--decode", "https://[::1]:8100") == "https://[::1]:8100"
    with pytest.raises(SystemExit):
        parse_proxy_args([])
