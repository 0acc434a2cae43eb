"""`/v1/messages`, by Anthropic's client where it is installed, and by events."""

import pytest

from mini_vllm.tests.entrypoints.openai.servers import Server

MODEL = "models/pocket"
QUESTION = [{"role": "user", "content": "What is a KV block?"}]
ASK = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def server():
    with Server(MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def http(server):
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def client(server):
    anthropic = pytest.importorskip("anthropic", reason="pip install anthropic")
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_message_is_the_chats_answer(http):
    said = http.post("/v1/messages", json=ASK).json()
    chat = http.post("/v1/chat/completions", json=ASK).json()
    assert said["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert (said["role"], said["stop_reason"]) == ("assistant", "max_tokens")
    tokens = said["usage"]["input_tokens"], said["usage"]["output_tokens"]
    assert tokens == (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"])


def test_the_clients_message_and_stream(client):
    asked = {name: value for name, value in ASK.items() if name != "temperature"}  # newer clients do not know it
    asked["extra_body"] = {"temperature": 0}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)


def test_the_clients_count(client, http):
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be short.")
    chat = [{"role": "system", "content": "Be short."}, *QUESTION]
    assert counted.input_tokens == http.post("/tokenize", json={"messages": chat}).json()["count"]


def test_events_of_a_stream(http):
    with http.stream("POST", "/v1/messages", json={**ASK, "stream": True}) as response:
        names = [line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: ")]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}


@pytest.mark.parametrize("changed, status, kind", [
    ({"model": "other"}, 404, "NotFoundError"),
    ({"temperature": -1}, 400, "BadRequestError"),
    ({"max_tokens": 5000}, 400, "BadRequestError"),
    ({"tools": [{"name": "f", "input_schema": {}}]}, 400, "BadRequestError"),
])  # fmt: skip
def test_errors_have_anthropics_form(http, changed, status, kind):
    refused = http.post("/v1/messages", json={**ASK, **changed})
    assert (refused.status_code, refused.json()["type"], refused.json()["error"]["type"]) == (status, "error", kind)


def test_blocks_become_turns():
    from mini_vllm.entrypoints.anthropic.convert import to_chat_request
    from mini_vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest

    turns = [
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
            {"type": "text", "text": "And?"}]},
    ]  # fmt: skip
    request = AnthropicMessagesRequest(model="m", max_tokens=1, messages=turns, system=[{"type": "text", "text": "S"}])
    assert [dict(message) for message in to_chat_request(request).messages] == [
        {"role": "system", "content": "S"},
        {"role": "assistant", "reasoning": "hm", "content": "Let me look.",
         "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "t1", "content": "42"},
        {"role": "user", "content": "And?"},
    ]  # fmt: skip


@pytest.mark.parametrize("text, found", [
    ('{"a": 1}', {"a": 1}), ('{"a": 1, "b": "x', {"a": 1, "b": "x"}), ("", {}), ("[1]", {}), ("}", {}),
])  # fmt: skip
def test_arguments_that_were_cut(text, found):
    pytest.importorskip("partial_json_parser", reason="needs the extra serve")
    from mini_vllm.entrypoints.anthropic.serving import _arguments

    assert _arguments(text) == found
