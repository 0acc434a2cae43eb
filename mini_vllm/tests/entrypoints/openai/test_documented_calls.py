"""The command of docs/parsers.md, run to its purpose: the official client gets pocket's own calls as `tool_calls`."""

import json
import re
import shlex

import pytest

from mini_vllm.tests.entrypoints.openai.servers import Server
from mini_vllm.tests.helpers import MODELS

pytest.importorskip("openai", reason="needs the official client")
pytest.importorskip("partial_json_parser", reason="needs the extra serve")

ROOT = MODELS.parent
PAGES = ["docs/parsers.md", "phase-16-serving-apis-and-parsers/02-mini-build.md"]
FIELDS = {"city": {"type": "string", "enum": ["Oslo", "Paris"]}, "unit": {"enum": ["celsius", "fahrenheit"]}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS], "additionalProperties": False}
FUNCTION = {"name": "get_weather", "description": "The weather in a city.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def command(page):
    """Flags of a page's one command that serves pocket: --enable-auto-tool-choice and its --tool-call-parser."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = set(re.findall(r"^mini-vllm serve models/pocket .*--tool-call-parser .*$", text, re.MULTILINE))
    (line,) = found
    words = shlex.split(line)[3:]
    return [word for word in words if word not in ("--port", "8000")]


@pytest.fixture(scope="module")
def client():
    with Server("models/pocket", *command(PAGES[0])) as running:
        yield running.openai()


@pytest.fixture(scope="module")
def closing():
    """Pocket writes one call and ends; in a list of calls, which only a grammar makes it write, it would go on."""
    from mini_vllm.tokenizers.registry import load_tokenizer

    return {str(load_tokenizer(MODELS / "pocket").get_vocab()["]"]): 30.0}


def test_all_pages_have_the_same_command():
    assert command(PAGES[0]) == command(PAGES[1]) != []


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
@pytest.mark.parametrize("city", ["Oslo", pytest.param("Paris", marks=pytest.mark.slow)])
def test_a_call_of_the_model_is_a_call_for_the_client(client, closing, choice, city):
    question = [{"role": "user", "content": f"What is the weather in {city}?"}]
    asked = {"model": "models/pocket", "messages": question, "tools": TOOLS, "tool_choice": choice}
    asked |= {"temperature": 0, "max_tokens": 90, "logit_bias": closing if choice == "required" else {}}
    whole = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    for found in (whole, streamed):
        (call,) = found.message.tool_calls[:1]
        assert call.function.name == "get_weather" and call.id and call.type == "function"
        assert json.loads(call.function.arguments) == {"city": city, "unit": "celsius"}
        assert found.finish_reason == ("stop" if choice is NAMED else "tool_calls") and not found.message.content


def test_where_nothing_fits_the_answer_is_text(client):
    question = [{"role": "user", "content": "What is a KV block?"}]
    asked = {"model": "models/pocket", "messages": question, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**asked).choices[0].message
    assert whole.content and not whole.tool_calls
