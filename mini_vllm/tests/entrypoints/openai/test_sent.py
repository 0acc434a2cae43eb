"""All deltas of a stream together are the whole answer: whatever the parser, and however the tokens come."""

import dataclasses
import json
import logging
import re
from types import SimpleNamespace

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("partial_json_parser")
pytest.importorskip("ijson")

from mini_vllm.entrypoints.openai.chat_completion.choice import make_message
from mini_vllm.entrypoints.openai.chat_completion.delta_as_released import make_delta_maker
from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionLogProbs,
    ChatCompletionLogProbsContent,
    ChatCompletionRequest,
)
from mini_vllm.entrypoints.openai.chat_completion.sent import Sent
from mini_vllm.entrypoints.openai.chat_completion.stream import StreamState
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from mini_vllm.entrypoints.openai.engine.serving import ServingOptions
from mini_vllm.outputs import CompletionOutput
from mini_vllm.tests.golden.parser_cases import CALLS, DEALS, SYNTAXES, THINK, TOOLS, Words, steps
from mini_vllm.tool_parsers.json_text import JsonPrefix, after_quote, rest_of_json

PAIRS = [(name, syntax) for syntax, (names, *_) in SYNTAXES.items() for name in names]
ODD = [
    [("get_weather", {"city": "a } b"})],
    [("get_weather", {"city": "mkdir -p test/{test1,test2"})],
    [("no_args", {}), ("get_weather", {"city": "}{", "days": -2})],
    [("get_weather", {"city": "Oslo", "where": {"parameters": {"arguments": 1}}})],
]
SEVERAL_AT_ONCE = ("mistral", "deepseek_v3", "deepseek_v31")
"""They give the first call of several in one step the name of another one: docs/parsers.md."""


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def parsers_of(tool, tokenizer, reasoning=None, as_released=False):
    options = dataclasses.replace(
        ServingOptions(),
        tool_parser=tool,
        reasoning_parser=reasoning,
        enable_auto_tools=tool is not None,
        parsers_as_released=as_released,
    )
    return Parsers(options, tokenizer)


def put_together(parsers, request, dealt, prompt_ids=(7,)):
    """(content, thoughts, [(name, arguments)], reason) of a stream."""
    maker, texts, calls, reason = make_delta_maker(parsers, request), ["", ""], {}, None
    for i, (text, ids) in enumerate(dealt):
        delta = maker.take(text, list(ids), list(prompt_ids))
        if i == len(dealt) - 1:
            reason, delta = maker.finish(delta, "stop")
        delta = maker.shown(delta)
        texts = [texts[0] + (delta.content or ""), texts[1] + (delta.reasoning or "")]
        for part in delta.tool_calls:
            call = calls.setdefault(part.index, ["", ""])
            call[0] += part.function.name or ""
            call[1] += part.function.arguments or ""
    return *texts, [tuple(calls[index]) for index in sorted(calls)], reason


def compare(tool, special, text, request, deals, reasoning=None):
    """Each of `deals` against the whole answer."""
    tokenizer = Words(special)
    message, _ = make_message(request, parsers_of(tool, tokenizer, reasoning), "assistant", text)
    expected = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
    for deal in deals:
        parsers = parsers_of(tool, tokenizer, reasoning)
        content, thoughts, calls, reason = put_together(parsers, request, steps(tokenizer, text, deal))
        assert [(name, json.loads(arguments)) for name, arguments in calls] == expected, (text, deal)
        assert content.strip() == (message.content or "").strip() and thoughts == (message.reasoning or "")
        assert reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize(("tool", "syntax"), PAIRS)
@pytest.mark.parametrize(
    "calls", [ODD[2], *(pytest.param(each, marks=pytest.mark.slow) for each in (*CALLS, *ODD[:2], ODD[3]))]
)
def test_a_stream_adds_up_to_its_whole_answer(tool, syntax, calls):
    _, special, write = SYNTAXES[syntax]
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")
    apart = tool in SEVERAL_AT_ONCE and len(calls) > 1
    deals = [deal for deal in DEALS if not (apart and deal in ("many", "all"))]
    for around in (("", "", ""), ("Let me look. ", "\n", "")):
        compare(tool, special, write(calls, around), request, deals)


@pytest.mark.parametrize("calls", [*ODD, *(pytest.param(each, marks=pytest.mark.slow) for each in CALLS)])
def test_required_calls_may_have_braces_in_their_texts(calls):
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="required")
    for separators in ((", ", ": "), (",", ":")):
        body = [{"name": name, "parameters": arguments} for name, arguments in calls]
        text = json.dumps(body, ensure_ascii=False, separators=separators)
        compare("hermes", SYNTAXES["hermes"][1], text, request, DEALS)


@pytest.mark.parametrize("text", ["<think>a b</think>So <tool_c", "<think>never ends", "no thoughts {x}"])
def test_what_looked_like_a_call_is_text_in_the_end(text):
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")
    special = [*THINK, *SYNTAXES["hermes"][1]]
    compare("hermes", list(dict.fromkeys(special)), text, request, DEALS, reasoning="qwen3")


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ('{"a": [1, {"b": "}\\"]"}, -2.5e3], "c": nul', True), ("{}", True), ('"text', True), ("", True),
        ("[]  ", True), ('{"a": 1}]', False), ('{"a" 1', False), ("{a", False), ('{"a": 1,}', False),
        ('["a": 1', False), ("[1}", False),
        ('{"Paris{"city"', False), ('{"a": 1} {', False), ("}", False),
    ],
)  # fmt: skip
def test_beginnings_of_json(text, begins):
    whole, by_character = JsonPrefix(), JsonPrefix()
    assert whole.grows(text) == all([by_character.grows(char) for char in text]) == begins


@pytest.mark.parametrize("text", [r'"a\\" {', r'"\"{\\\"" {', '{"a": "}"} "', '""{"', r"\""])
def test_where_a_text_stands_in_the_strings_of_json(text):
    """Against a pattern for whole strings, and for one that is cut."""
    where = ""
    for end in range(len(text) + 1):
        where = after_quote(where, text[end - 1]) if end else ""
        *_, last = ['"', *re.findall(r'"(?:[^"\\]|\\.)*("|\\?\Z)', text[:end])]
        assert where == {'"': "", "": '"'}.get(last, last)


def test_a_part_that_is_refused_does_not_count():
    prefix = JsonPrefix()
    assert prefix.grows('{"a": ') and not prefix.grows("}") and prefix.grows("1}") and not prefix.grows(",")


@pytest.mark.parametrize(
    ("sent", "whole", "rest"),
    [
        ('{"a":1', '{"a": 1, "b": 2}', ', "b": 2}'), ("", "{}", "{}"), ('{ "a b', '{"a bc"}', 'c"}'),
        ('{"a": 1}', '{"a": 1}', ""), ('{"a b"', '{"ab"}', None), ('{"b"', '{"a"}', None), ("{}x", "{}", None),
        ('{"a": "\\\\" ,', '{"a": "\\\\", "b": 1}', ' "b": 1}'), ('{"a": "\\" b', '{"a": "\\" b c"}', ' c"}'),
        (r'{"a": "\\\" b', r'{"a":"\\\" b c"}', ' c"}'), (r'{"a": "\\\" b', r'{"a": "\\\"  b"}', None),
    ],
)  # fmt: skip
def test_rest_of_json(sent, whole, rest):
    assert rest_of_json(sent, whole) == rest


@pytest.mark.parametrize(("days", "metric"), [("null", "tr"), ("3", "True"), ("", "null")])
def test_a_value_in_xml_that_comes_by_characters(days, metric):
    parameters = f"<parameter=days>\n{days}\n</parameter>\n<parameter=metric>\n{metric}\n</parameter>\n"
    text = f"<tool_call>\n<function=get_weather>\n{parameters}</function>\n</tool_call>"
    request = ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice="auto")
    compare("qwen3_xml", SYNTAXES["xml"][1], text, request, ("characters", "tokens", "some", "many"))


@pytest.mark.parametrize("reasoning", ["qwen3", "nemotron_v3", "glm45", "deepseek_v3"])
def test_an_answer_without_thinking_is_no_thought_and_its_grammar_counts_at_once(reasoning):
    tokenizer, off = Words(THINK), {"enable_thinking": False, "thinking": False}
    request = ChatCompletionRequest(messages=[], model="m", chat_template_kwargs=off)
    parsers, text = parsers_of(None, tokenizer, reasoning), '{"a": 1}'
    assert parsers.about_reasoning(request, [7])["reasoning_ended"]
    message, _ = make_message(request, parsers, "assistant", text, [7])
    assert put_together(parsers, request, steps(tokenizer, text, "tokens"))[:2] == (text, "")
    assert (message.content, message.reasoning) == (text, None)


@pytest.mark.parametrize("reasoning", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize("text", ["An answer.", "<think>cut"])
def test_a_prompt_that_ends_the_thoughts(reasoning, text):
    tokenizer = Words(THINK)
    request = ChatCompletionRequest(messages=[], model="m")
    parsers, prompt = parsers_of(None, tokenizer, reasoning), [7, tokenizer.id("<think>"), tokenizer.id("</think>")]
    message, _ = make_message(request, parsers, "assistant", text, prompt)
    if text == "An answer.":
        assert (message.content, message.reasoning) == (text, None)
        assert put_together(parsers, request, steps(tokenizer, text, "tokens"), prompt)[:2] == (text, "")
    else:
        assert (message.content, message.reasoning) == (None, "cut")


def part(index, name=None, arguments=None):
    return DeltaToolCall(index=index, function=DeltaFunctionCall(name=name, arguments=arguments))


def test_parts_out_of_order_are_held():
    sent = Sent()
    assert sent.admit(DeltaMessage(tool_calls=[part(0, "f", "{")])).tool_calls
    assert sent.admit(DeltaMessage(tool_calls=[part(0, "g")])) is None  # the same call has another name
    assert sent.admit(DeltaMessage(tool_calls=[part(1, "g")])) is None and [call.name for call in sent.calls] == ["f"]
    left = sent.admit(DeltaMessage(content="x", tool_calls=[part(2, None, "}")]))
    assert left.content == "x" and not left.tool_calls


@pytest.mark.parametrize("as_released", [False, True])
def test_log_probabilities_of_held_tokens_come_with_the_next_event(as_released):
    request = ChatCompletionRequest(
        messages=[], model="m", tools=TOOLS, tool_choice="auto", stream=True, logprobs=True, top_logprobs=0
    )
    tokenizer = Words(SYNTAXES["hermes"][1])

    def logprobs_of(request, output):
        content = [ChatCompletionLogProbsContent(token=str(token_id)) for token_id in output.token_ids]
        return ChatCompletionLogProbs(content=content)

    options = SimpleNamespace(enable_force_include_usage=False, system_fingerprint=None)
    serving = SimpleNamespace(
        parsers=parsers_of("hermes", tokenizer, as_released=as_released), options=options, logprobs_of=logprobs_of,
        _raise_if_error=lambda *args: None, _log_output=lambda *args: None,
    )  # fmt: skip
    state = StreamState(serving, SimpleNamespace(request=request, request_id="r"))
    seen = []
    state.event = lambda choices, **further: seen.extend(choices)
    dealt = steps(tokenizer, SYNTAXES["hermes"][2](CALLS[0], ("Well. ", "", "")), "tokens")
    for i, (text, ids) in enumerate(dealt):
        reason = "stop" if i == len(dealt) - 1 else None
        output = CompletionOutput(index=0, text=text, token_ids=ids, finish_reason=reason)
        state._event_of(output, SimpleNamespace(prompt_token_ids=[7]))
    found = [int(each.token) for choice in seen for each in choice.logprobs.content]
    assert len(seen) < len(dealt)
    assert found == [i for _, ids in dealt for i in ids] or (as_released and len(found) == len(seen))
