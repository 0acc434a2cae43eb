"""Tool calls and thoughts over HTTP, on pocket: against what the real server answered, and by the openai client."""

import json
from pathlib import Path

import pytest

from mini_vllm.tests.entrypoints.openai.servers import Server, events
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.server_cases import KEYED
from mini_vllm.tests.golden.server_compare import differences
from mini_vllm.tests.golden.server_play import client_of, play
from mini_vllm.tests.golden.server_requests import API_KEY

pytest.importorskip("partial_json_parser", reason="needs the extra serve")

MODEL = "models/pocket"
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "server.json.xz"
RECORDED = read_packed(GOLDEN)["keyed"]["answers"]
CASES = {
    case["name"]: case for case in KEYED if case["path"] == "/v1/chat/completions" and "tools" in (case["json"] or {})
}
TOOLS = next(case["json"]["tools"] for case in CASES.values())
NAME = TOOLS[0]["function"]["name"]
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
FLAGS = (
    "--served-model-name", "pocket", "pocket-again", "--max-model-len", "512", "--block-size", "16", "--max-num-seqs",
    "32", "--max-num-batched-tokens", "512", "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes", "--api-key", API_KEY, "--max-logprobs", "3", "--enable-request-id-headers",
    "--scheduling-policy", "priority", "--return-tokens-as-token-ids", "--enable-force-include-usage",
    "--fingerprint-mode", "none",
)  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with Server(MODEL, *FLAGS) as running:
        yield running


CUT = {key: ["'tool_calls', ours 'length'"] for key in ("chat: tool cut, stream", "chat: tool required, stream")}
"""Streams that end in the middle of a call: docs/parsers.md, report 53269."""
FAST = ("chat: tool called", "chat: tool called after text, stream", "chat: tool named, stream")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_as_the_real_server(server, name):
    assert [line.partition("finish_reason: ")[2] for line in differ(server, name)] == CUT.get(name, [])


@pytest.mark.slow
def test_as_the_real_server_with_parsers_as_released():
    """Of a stream without tools too, which has an empty list of calls then."""
    without_tools = "chat: stream, usage forced"
    with Server(MODEL, *FLAGS, "--parsers-as-released") as running:
        assert not [line for name in (*CASES, without_tools) for line in differ(running, name)]


def differ(server, name):
    """Where the answer differs from the recorded one."""
    case = next(case for case in KEYED if case["name"] == name)
    with client_of(server.url) as client:
        found = differences(RECORDED[name], play(client, case))
    apart = ("system_fingerprint", "prompt_tokens_details")  # the second tells what was asked before
    return [f"{name}: {line}" for line in found if not any(each in line for each in apart)]


def forced(text, **more):
    """A request whose answer is this text."""
    choice = {"structured_outputs": {"choice": [text]}}
    return {"model": "pocket", "messages": ASKED, "max_tokens": 90, "tools": TOOLS, **choice, **more}


def ask(server, body):
    """The whole answer's choice, and the deltas of its stream with the reason why it ends."""
    with server.client(headers={"Authorization": f"Bearer {API_KEY}"}) as client:
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            sent = [event["choices"][0] for event in events(response)[:-1] if event["choices"]]
    return answer.json()["choices"][0], [choice["delta"] for choice in sent], sent[-1]["finish_reason"]


def joined(deltas):
    """(content, thoughts, calls) of a stream; each call's id and name come once."""
    calls = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or ()):
        call = calls.setdefault(part["index"], {"arguments": ""})
        for name in ("id", "type"):
            assert not (part.get(name) and name in call)
            call.update({name: part[name]} if part.get(name) else {})
        if part["function"].get("name"):
            assert "name" not in call
            call["name"] = part["function"]["name"]
        call["arguments"] += part["function"].get("arguments") or ""
    content, thoughts = ("".join(delta.get(key) or "" for delta in deltas) for key in ("content", "reasoning"))
    return content, thoughts, [calls[index] for index in sorted(calls)]


CALL = f'<tool_call>\n{{"name": "{NAME}", "arguments": {{"city": "Zürich"}}}}\n</tool_call>'


NAMED = {"type": "function", "function": {"name": NAME}}
CITIES = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Zürich"]}},
    "required": ["city"],
    "additionalProperties": False,
}
PLUGIN = """
from mini_vllm.reasoning import ReasoningParserManager
from mini_vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
from mini_vllm.tool_parsers import ToolParserManager
from mini_vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser


@ToolParserManager.register_module("my_tools")
class MyTools(Hermes2ProToolParser):
    pass


@ReasoningParserManager.register_module("my_thoughts")
class MyThoughts(DeepSeekR1ReasoningParser):
    start_token, end_token = "^", "~"  # two characters that are tokens of pocket's
"""


@pytest.mark.slow
def test_no_parallel_calls(server):
    choice, deltas, ended = ask(server, forced(f"{CALL}\n{CALL}", parallel_tool_calls=False))
    assert len(choice["message"]["tool_calls"]) == 1 and choice["finish_reason"] == ended == "tool_calls"
    assert [call["name"] for call in joined(deltas)[2]] == [NAME]


@pytest.mark.parametrize("more", [{"tool_choice": "none"}, {"tools": None}])
def test_where_nothing_may_be_called_a_call_is_text(server, more):
    choice, deltas, ended = ask(server, forced(CALL, **more))
    assert choice["message"]["content"] == CALL and not choice["message"]["tool_calls"]
    assert joined(deltas) == (CALL, "", []) and choice["finish_reason"] == ended == "stop"


@pytest.mark.slow
def test_a_call_that_is_no_json_is_text(server):
    broken = CALL.replace('"}}', '"')
    choice, deltas, ended = ask(server, forced(broken))
    assert choice["message"]["content"] == broken and choice["finish_reason"] == "stop"
    content, _, (call,) = joined(deltas)  # a stream cannot take back what it has sent
    assert (content, call["name"], call["arguments"], ended) == ("", NAME, '{"city": "Zürich"', "tool_calls")


def test_a_named_function_on_pocket_obeys_its_schema(server):
    function = {"name": NAME, "parameters": CITIES}
    body = {"model": "pocket", "messages": ASKED, "max_tokens": 60, "temperature": 0}
    body["tools"] = [{"type": "function", "function": function}]
    body["tool_choice"] = NAMED
    choice, deltas, ended = ask(server, body)
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Zürich")
    assert joined(deltas)[2][0]["arguments"] == call["function"]["arguments"]
    assert choice["finish_reason"] == ended == "stop"


def test_the_openai_client_puts_a_stream_together(server):
    client = server.openai(api_key=API_KEY)
    ask_for = {"model": "pocket", "messages": ASKED, "tools": TOOLS, "max_tokens": 90}
    text = f"Well. {CALL}"
    whole = client.chat.completions.create(**ask_for, extra_body={"structured_outputs": {"choice": [text]}})
    with client.chat.completions.stream(**ask_for, extra_body={"structured_outputs": {"choice": [text]}}) as stream:
        (choice,) = stream.get_final_completion().choices
    assert choice.finish_reason == whole.choices[0].finish_reason == "tool_calls"
    for message in (choice.message, whole.choices[0].message):
        (call,) = message.tool_calls
        assert message.content == "Well. " and call.function.name == NAME
        assert json.loads(call.function.arguments) == {"city": "Zürich"}


@pytest.fixture(scope="module")
def thinking_server(tmp_path_factory):
    """The parsers are a user's. Pocket does not think; a bias makes it write "~", and a grammar waits for that."""
    path = tmp_path_factory.mktemp("plugin") / "mine.py"
    path.write_text(PLUGIN, encoding="utf-8")
    flags = ["--served-model-name", "pocket", "--enable-auto-tool-choice", "--tool-call-parser", "my_tools"]
    flags += ["--tool-parser-plugin", str(path), "--reasoning-parser", "my_thoughts"]
    flags += ["--structured-outputs-config", '{"disable_any_whitespace": true}']
    with Server(MODEL, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def bias(thinking_server):
    vocab = thinking_server.engine.tokenizer.get_vocab()
    return {str(vocab["~"]): 20.0, str(vocab["<|end|>"]): -100.0}  # it ends its thoughts where it would end its answer


@pytest.mark.slow
def test_thoughts_and_calls(thinking_server, bias):
    body = forced(f"Look. {CALL}", logit_bias=bias, temperature=0, max_tokens=120)
    choice, deltas, ended = ask(thinking_server, body)
    message = choice["message"]
    assert message["content"] == "Look. " and json.loads(message["reasoning"])["name"] == NAME
    ((call,), arguments) = message["tool_calls"], '{"city": "Zürich"}'
    assert call["function"] == {"name": NAME, "arguments": arguments}
    content, thoughts, (streamed,) = joined(deltas)
    assert (content, thoughts) == (message["content"], message["reasoning"])
    assert (streamed["name"], streamed["arguments"]) == (NAME, arguments)
    assert choice["finish_reason"] == ended == "tool_calls"


@pytest.mark.slow
def test_a_forced_call_waits_for_the_end_of_the_thinking(thinking_server, bias):
    tools = [{"type": "function", "function": {"name": NAME, "parameters": CITIES}}]
    body = {"model": "pocket", "messages": ASKED, "tools": tools, "tool_choice": NAMED, "logit_bias": bias}
    choice, deltas, ended = ask(thinking_server, {**body, "temperature": 0, "max_tokens": 120})
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Zürich") and choice["message"]["reasoning"]
    content, thoughts, (streamed,) = joined(deltas)
    assert json.loads(streamed["arguments"]) == json.loads(call["function"]["arguments"])
    assert (content, thoughts) == ("", choice["message"]["reasoning"])
    assert choice["finish_reason"] == ended == "stop"


@pytest.mark.slow
def test_thoughts_that_nobody_wants(thinking_server, bias):
    body = forced(f"^hm~Look. {CALL}", logit_bias=bias, include_reasoning=False)
    choice, _, _ = ask(thinking_server, body)  # the grammar does not wait, so the answer's text has the marks itself
    assert choice["message"]["reasoning"] is None and choice["message"]["content"] == "Look. "
    assert choice["message"]["tool_calls"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--enable-auto-tool-choice", "--tool-call-parser", "no_such"), "no_such.*not been registered"),
        (("--reasoning-parser", "no_such"), "no_such.*not been registered"),
        (("--enable-auto-tool-choice", "--tool-call-parser", "mistral"), r"could not locate \[TOOL_CALLS\]"),
        (("--tool-parser-plugin", "no_such_file.py"), "no_such_file.py.*cannot be loaded"),
        (("--reasoning-parser", "qwen3"), "could not locate .*<think>"),
    ],
)
def test_flags_that_cannot_be_are_told_at_the_start(flags, said):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=said), Server(MODEL, *flags):
        pass
