"""`/v1/responses` by the openai client, and the items it is made of."""

import json

import pytest

from mini_vllm.tests.entrypoints.openai.servers import Server

MODEL = "models/pocket"
ASK = {"model": MODEL, "input": "What is a KV block?", "temperature": 0, "max_output_tokens": 12}


@pytest.fixture(scope="module")
def server():
    with Server(MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


def test_a_response_and_its_stream_say_the_same(client):
    whole = client.responses.create(**ASK)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 12
    events = list(client.responses.create(**ASK, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == whole.output_text


def test_a_schema(client):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    assert list(json.loads(client.responses.create(**{**ASK, "max_output_tokens": 40}, text=form).output_text)) == ["a"]


def test_nothing_is_kept(client):
    import openai

    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.create(**ASK, previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.create(**ASK, background=True)


def test_items_become_the_messages_of_a_chat():
    from mini_vllm.entrypoints.openai.responses.utils import construct_input_messages

    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
    ]
    assert construct_input_messages("Be short.", items) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "reasoning": "hm",
         "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "rain", "tool_call_id": "c"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
    ]  # fmt: skip


def test_thoughts_text_and_calls_are_items_of_a_stream():
    """Each ends before the next begins; what they hold is what the deltas said."""
    from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponseStreamChoice
    from mini_vllm.entrypoints.openai.responses.streaming_events import ItemStream

    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    deltas = [{"reasoning": "h"}, {"reasoning": "m"}, {"content": "Let"}, {"content": " me."}, {"tool_calls": [call]},
              {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}]  # fmt: skip
    stream = ItemStream()
    found = []
    for delta in deltas:
        found += stream.take(ChatCompletionResponseStreamChoice.model_validate({"index": 0, "delta": delta}))
    found += stream.end()
    assert [event["type"].removeprefix("response.") for event in found] == [
        "output_item.added", "reasoning_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "reasoning_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    thoughts, text, called = stream.items
    assert thoughts["content"][0]["text"] == "hm" and text["content"][0]["text"] == "Let me."
    assert (called["name"], called["arguments"], called["call_id"]) == ("f", "{}", "c")
