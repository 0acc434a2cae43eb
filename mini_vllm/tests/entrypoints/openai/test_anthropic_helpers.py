"""What the official anthropic client does with `/v1/messages`: async streams, keys, stops, tools, its errors."""

import asyncio

import pytest

from mini_vllm.tests.entrypoints.openai.servers import WAIT_S, Server

anthropic = pytest.importorskip("anthropic", reason="needs the official client")

pytestmark = pytest.mark.slow
MODEL = "models/pocket"
KEY = "let-me-in"
ASK = {"model": MODEL, "max_tokens": 60, "messages": [{"role": "user", "content": "What is a KV block?"}]}
GREEDY = {**ASK, "extra_body": {"temperature": 0}}  # newer clients do not know it
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOLS = [{"name": "get_weather", "description": "The weather in a city.", "input_schema": SCHEMA}]


@pytest.fixture(scope="module")
def server():
    with Server(MODEL, "--api-key", KEY, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    """The server knows keys as bearer tokens alone, as vLLM does."""
    return anthropic.Anthropic(base_url=server.url, auth_token=KEY, api_key=None, max_retries=0, timeout=WAIT_S)


@pytest.fixture(scope="module")
def openai_text(server):
    client = server.openai(api_key=KEY)
    answer = client.chat.completions.create(model=MODEL, messages=ASK["messages"], max_tokens=60, temperature=0)
    return answer.choices[0].message.content


def test_a_message_is_what_the_chat_route_says(client, openai_text):
    message = client.messages.create(**GREEDY)
    assert [block.text for block in message.content] == [openai_text]
    assert (message.role, message.type, message.stop_reason) == ("assistant", "message", "end_turn")
    assert message.usage.input_tokens == 13 and message.usage.output_tokens > 20


def test_async_streams_beside_each_other(server, openai_text):
    async def one(client):
        async with client.messages.stream(**GREEDY) as stream:
            return "".join([piece async for piece in stream.text_stream])

    async def three():
        async with anthropic.AsyncAnthropic(base_url=server.url, auth_token=KEY, api_key=None) as client:
            return await asyncio.gather(*(one(client) for _ in range(3)))

    assert asyncio.run(three()) == [openai_text] * 3


def test_limits_and_stops(client):
    cut = client.messages.create(**{**GREEDY, "max_tokens": 4})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 4)
    stopped = client.messages.create(**GREEDY, stop_sequences=["unit"])
    assert stopped.content[0].text == "A KV block is the "


def test_a_tool_that_has_to_be_used(client):
    message = client.messages.create(**GREEDY, tools=TOOLS, tool_choice={"type": "tool", "name": "get_weather"})
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "get_weather" and call.input["city"] in ("Paris", "Rome")
    assert message.stop_reason == "end_turn"  # not "tool_use": as in vLLM, a named tool leaves the reason as it is
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [*ASK["messages"], {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(**{**GREEDY, "messages": turns}, tools=TOOLS, tool_choice={"type": "none"})
    assert "sunny" in answer.content[0].text


def test_errors_are_the_clients_own(client, server):
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(**{**ASK, "model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be positive"):
        client.messages.create(**{**ASK, "max_tokens": 0})
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "word " * 3000}]})
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, auth_token="wrong", api_key=None, max_retries=0).messages.create(**ASK)
