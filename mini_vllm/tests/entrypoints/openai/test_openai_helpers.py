"""What the official openai client builds on top of the routes: async streams, its stream helper, parsed answers, tools,
raw responses, retries.
"""

import asyncio
import json
from typing import Literal

import pytest

from mini_vllm.tests.entrypoints.openai.servers import WAIT_S, Server

openai = pytest.importorskip("openai", reason="needs the official client")
pydantic = pytest.importorskip("pydantic")

pytestmark = pytest.mark.slow  # test_openai_client.py is the fast one
MODEL = "models/pocket"
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
CALL = '<tool_call>\\{"name": "get_weather", "arguments": \\{"city": "[A-Z][a-z]{2,8}"\\}\\}</tool_call>'
FORCED = {"structured_outputs": {"regex": CALL}}


class Answer(pydantic.BaseModel):
    word: Literal["block", "cache"]
    count: Literal[1, 2]


@pytest.fixture(scope="module")
def server():
    with Server(MODEL, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


@pytest.fixture(scope="module")
def tool():
    def get_weather(city: str) -> str:
        return f"sunny in {city}"

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    about = {"name": "get_weather", "description": "The weather in a city.", "parameters": schema}
    return get_weather, {"type": "function", "function": about}


def test_async_streams_beside_each_other_say_what_one_says_alone(server, client):
    prompts = ["The scheduler", "A fox", "Paged attention keeps", "The cache"]
    ask = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    alone = [client.completions.create(prompt=prompt, **ask).choices[0].text for prompt in prompts]

    async def one(asynchronous, prompt):
        stream = await asynchronous.completions.create(prompt=prompt, stream=True, **ask)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=WAIT_S) as asynchronous:
            return await asyncio.gather(*(one(asynchronous, prompt) for prompt in prompts))

    assert asyncio.run(together()) == alone


def test_stream_helper_puts_the_answer_together(client):
    asked = [{"role": "user", "content": "Hi"}]
    with client.chat.completions.stream(model=MODEL, messages=asked, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop" and len(deltas) > 1


def test_parsed_answers(client):
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASKED, response_format=Answer, max_tokens=40, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


def test_a_tool_is_called_and_its_result_read(client, tool):
    function, described = tool
    ask = {"model": MODEL, "tools": [described], "max_tokens": 60, "temperature": 0}
    choice = client.chat.completions.create(messages=ASKED, extra_body=FORCED, **ask).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.type, call.function.name) == ("tool_calls", "function", "get_weather")
    result = {"role": "tool", "tool_call_id": call.id, "content": function(**json.loads(call.function.arguments))}
    answer = client.chat.completions.create(messages=[*ASKED, choice.message, result], **ask).choices[0]
    assert "sunny" in answer.message.content and answer.finish_reason == "stop"


def test_a_streamed_call_is_the_whole_one(client, tool):
    ask = {"model": MODEL, "messages": ASKED, "tools": [tool[1]], "max_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(extra_body=FORCED, **ask).choices[0]
    with client.chat.completions.stream(extra_body=FORCED, **ask) as stream:
        (last,) = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert (last.name, last.arguments) == ("get_weather", whole.message.tool_calls[0].function.arguments)
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    assert not final.message.content and not whole.message.content


def test_a_tool_that_has_to_be_called(client, tool):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    described = {"type": "function", "function": {**tool[1]["function"], "parameters": schema}}
    ask = {"model": MODEL, "messages": ASKED, "tools": [described], "max_tokens": 60, "temperature": 0}
    for wanted in (choice, "required"):
        call = client.chat.completions.create(tool_choice=wanted, **ask).choices[0].message.tool_calls[0]
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_raw_responses(client):
    raw = client.completions.with_raw_response.create(model=MODEL, prompt="A", max_tokens=1)
    assert raw.status_code == 200 and raw.headers["content-type"] == "application/json"
    assert raw.parse().usage.completion_tokens == 1


def test_the_client_tries_again_where_the_server_is_full():
    """A request that is refused with 429 and Retry-After is sent again until there is room."""
    with Server(MODEL, "--max-concurrent-requests", "1") as server:
        ask = {"model": MODEL, "prompt": "A fox", "temperature": 0}

        async def both():
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=20) as client:
                first = await client.completions.create(max_tokens=60, stream=True, **ask)
                second = asyncio.create_task(client.completions.create(max_tokens=1, **ask))
                pieces = [chunk async for chunk in first]
                return pieces[-1].choices[0].finish_reason, (await second).usage.completion_tokens

        assert asyncio.run(both()) == ("length", 1)
