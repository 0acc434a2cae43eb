"""Responses that are kept, and `/invocations`: by the openai client, and beside what the real server answered."""

import asyncio
import json

import pytest

pytest.importorskip("pydantic", reason="needs the extra serve")

from mini_vllm.entrypoints.openai.responses.store import EventLog, ResponseStore
from mini_vllm.entrypoints.openai.responses.utils import continue_from
from mini_vllm.tests.entrypoints.openai.servers import Server, events, unhurried
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.record_server import options
from mini_vllm.tests.golden.record_server_store import FILE
from mini_vllm.tests.golden.server_cases import ARGS
from mini_vllm.tests.golden.server_compare import differences
from mini_vllm.tests.golden.server_play import client_of
from mini_vllm.tests.golden.server_store_cases import ENVIRONMENT, STEPS, walk

MODEL = "models/pocket"
ASK = {"model": MODEL, "input": "What is a KV block?", "temperature": 0, "max_output_tokens": 6}
ENDLESS = {**ASK, "max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
        with Server(MODEL) as running:
            yield running


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


@pytest.fixture
def slowly(server):
    with unhurried(server):
        yield


def wait(client, response_id):
    while (found := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        pass
    return found


def test_the_next_response_goes_on_from_the_last(client):
    first = client.responses.create(**ASK, instructions="Be brief.")
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(**{**ASK, "input": "Why?"}, previous_response_id=first.id)
    turns = [
        {"role": "user", "content": ASK["input"]},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Why?"},
    ]
    told = client.responses.create(**{**ASK, "input": turns})
    assert (second.output_text, second.usage.input_tokens) == (told.output_text, told.usage.input_tokens)
    third = client.responses.create(**{**ASK, "input": "And?"}, previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens


def test_in_the_background_and_streamed_again(client):
    import openai

    queued = client.responses.create(**ASK, background=True)
    assert (queued.status, queued.output) == ("queued", [])
    assert wait(client, queued.id).output_text == client.responses.create(**ASK).output_text
    seen = list(client.responses.create(**ASK, background=True, stream=True))
    again = list(client.responses.retrieve(seen[0].response.id, stream=True))
    later = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=3))
    assert seen == again and later == seen[4:] and seen[-1].type == "response.completed"
    with pytest.raises(openai.BadRequestError, match="not streamed in the background"):
        list(client.responses.retrieve(queued.id, stream=True))
    assert wait(client, seen[0].response.id).output_text == seen[-1].response.output_text


def test_a_cancelled_one_leaves_the_engine(server, client, slowly):
    import openai

    running = client.responses.create(**ENDLESS, background=True)
    assert client.responses.cancel(running.id).status == "cancelled"
    server.wait_until_idle()
    assert client.responses.retrieve(running.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(running.id)
    stream = client.responses.create(**ENDLESS, background=True, stream=True)
    running = next(iter(stream)).response
    assert client.responses.cancel(running.id).status == "cancelled"
    assert "completed" not in [event.type for event in stream]  # it ends, and is not complete
    server.wait_until_idle()


def test_one_that_fails_says_so(server, client, monkeypatch):
    async def broken(self, request, context):
        raise RuntimeError("no such luck")

    serving = server.app.state.openai_serving_responses
    monkeypatch.setattr(type(serving), "responses_full_generator", broken)
    assert wait(client, client.responses.create(**ASK, background=True).id).status == "failed"


def test_the_store_forgets_the_oldest_that_does_not_run():
    store = ResponseStore(max_kept=2)

    class Response:
        def __init__(self, name, status="completed"):
            self.id, self.status = name, status

    async def main():
        for name in "ab":
            store.open(name, [])
        store.run(Response("a", "queued"), asyncio.sleep(9, True))
        store.keep(Response("b"))
        store.open("c", [])
        store.keep(Response("c"))
        assert [bool(store.find(name)) for name in "abc"] == [True, False, True]
        await store.cancel(store.find("a"))
        store.keep(Response("a"))
        assert store.find("a").response.status == "cancelled"

    asyncio.run(main())


def test_readers_of_a_log_see_all_of_it_and_its_end():
    async def main():
        log = EventLog()

        async def stream():
            for each in "abc":
                await asyncio.sleep(0)
                yield each
            raise RuntimeError("broken")

        async def read(after):
            return [each async for each in log.read(after)]

        readers = [asyncio.create_task(read(after)) for after in (None, -5, 0, 2, 9)]
        with pytest.raises(RuntimeError, match="broken"):
            await log.fill(stream())
        return await asyncio.gather(*readers)

    assert asyncio.run(main()) == [["a", "b", "c"], ["a", "b", "c"], ["b", "c"], [], []]


def test_calls_stay_in_the_history_and_instructions_do_not():
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    text = {"type": "message", "content": [{"text": "done"}]}
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    history = continue_from(asked, [{"type": "reasoning"}, call, text])
    assert [each["role"] for each in history] == ["user", "assistant", "assistant"]
    assert history[1]["tool_calls"][0]["id"] == "1" and history[2]["content"] == "done"
    assert asked[1] == {"role": "user", "content": "Hi"}


def test_invocations_answer_by_the_first_route_that_fits(server):
    body = {"max_tokens": 3, "temperature": 0}
    messages = [{"role": "user", "content": "Hi"}]
    with server.client() as client:
        for extra, kind in (
            ({"prompt": "A fox"}, "text_completion"), ({"messages": messages}, "chat.completion"),
            ({"prompt": "A fox", "messages": messages}, "chat.completion"),
        ):  # fmt: skip
            assert client.post("/invocations", json={**body, **extra}).json()["object"] == kind
        with client.stream("POST", "/invocations", json={**body, "prompt": "A fox", "stream": True}) as stream:
            assert events(stream)[-1] == "[DONE]"
        refused = client.post("/invocations", json={"words": 1})
        broken = client.post("/invocations", content=b"{", headers={"content-type": "application/json"})
        form = client.post("/invocations", data={"prompt": "A fox"})
    expected = "Expected one of: ['ChatCompletionRequest', 'CompletionRequest']"
    assert refused.status_code == 400 and expected in refused.json()["error"]["message"]
    assert broken.status_code == 400 and "JSON decode error" in broken.json()["error"]["message"]
    assert form.status_code == 400 and "Unsupported Media Type" in form.json()["error"]["message"]


def test_a_profile_of_a_server(tmp_path):
    config = json.dumps({"profiler": "torch", "torch_profiler_dir": str(tmp_path / "traces")})
    with Server("toy", "--profiler-config", config) as server, server.client() as client:
        assert client.post("/stop_profile").status_code == 400
        assert client.post("/start_profile").status_code == 200
        assert client.post("/start_profile").status_code == 400
        client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 3})
        assert client.post("/stop_profile").status_code == 200
    (path,) = (tmp_path / "traces").iterdir()
    names = {event["name"] for event in json.loads(path.read_text())["traceEvents"]}
    assert {"process_inputs", "step 0", "forward", "decode"} <= names


@pytest.mark.slow
def test_the_walk_beside_the_real_server(monkeypatch):
    recorded = read_packed(FILE)["answers"]
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with Server(MODEL, *options(ARGS)) as server, client_of(server.url) as client:
        ours = walk(client)
    assert ours.keys() == recorded.keys()
    lines = [f"{name} {line}" for name, *_ in STEPS for line in differences(recorded[name], ours[name], False)]
    assert [line for line in lines if not any(part in line for part in DIFFERENCES)] == []
    assert [part for part in DIFFERENCES if not any(part in line for line in lines)] == []


DIFFERENCES = {
    ".item.summary:": "the real server's streamed text has a summary, as without a store",
    ".output[0].id: 'msg_#', ours '#'": "and at its end another id than in its events; ours has one id",
    ".system_fingerprint:": "vllm- and mini_vllm-",
    "invocations: other model": "SageMaker's wrapper there overwrites the body's model, so that no model is wrong",
    "invocations: a list": "and looks into the body as if it were a dict; ours has upstream's own message",
}
"""A part of a difference -> why it is one. Each is needed."""
