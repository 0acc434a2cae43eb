"""What was reported of vLLM's parsers, streams and grammars in public, tried here: the table of docs/parsers.md."""

import json
import logging

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("partial_json_parser")
pytest.importorskip("ijson")

from mini_vllm.entrypoints.openai.chat_completion.choice import finish_reason, make_message
from mini_vllm.entrypoints.openai.chat_completion.delta_as_released import make_delta_maker
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.parser import ParserManager
from mini_vllm.tests.entrypoints.openai.test_sent import parsers_of, put_together
from mini_vllm.tests.golden.parser_cases import EOS, SYNTAXES, THINK, TOOLS, Words, steps

DEEPSEEK = SYNTAXES["deepseek_v3"][1]
TAGS = ["<tool_call>", "</tool_call>"]
CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def asked(**more):
    return ChatCompletionRequest(**{"messages": [], "model": "m", "tools": TOOLS, "tool_choice": "auto", **more})


def both(tool, special, reasoning=None):
    """(ours, as released)."""
    return [parsers_of(tool, Words(special), reasoning, released) for released in (False, True)]


def at_once(parsers, text, request=None):
    """A stream of one step."""
    return put_together(parsers, request or asked(), steps(parsers.tokenizer, text, "all"))


def test_48318_parallel_calls_of_mistral_behind_text_in_one_delta():
    text = 'I will help.[TOOL_CALLS]add{"a": 3.5, "b": 4}[TOOL_CALLS]multiply{"a": 3, "b": 6}'
    ours, released = (at_once(each, text) for each in both("mistral", ["[TOOL_CALLS]", "[ARGS]"]))
    assert ours[:3] == ("I will help.", "", [("add", '{"a": 3.5, "b": 4}'), ("multiply", '{"a": 3, "b": 6}')])
    assert released[2] == [("add", '{"a": 3.5, "b": 4}multiply{"a": 3, "b": 6}')]


@pytest.mark.parametrize("tool", ["deepseek_v3", "deepseek_v31"])
def test_48299_a_whole_call_of_deepseek_in_one_delta(tool):
    calls = [("get_weather", {"city": "Oslo"}), ("no_args", {})]
    text = SYNTAXES[tool][2](calls, ("", "", ""))
    ours, released = (at_once(each, text)[2] for each in both(tool, DEEPSEEK))
    assert [(name, json.loads(arguments)) for name, arguments in ours] == calls and "get_weather" not in dict(released)


def test_43220_the_end_of_thoughts_and_a_call_in_the_same_delta():
    ours, _ = both("qwen3_coder", THINK, "qwen3")
    text = f"<think>I will use the tool Write </think>{CALL}"
    tokens = ours.tokenizer.split(text)
    cut = tokens.index("Write") if "Write" in tokens else tokens.index(" Write")
    dealt = [("".join(part), list(map(ours.tokenizer.id, part))) for part in (tokens[:cut], tokens[cut:])]
    content, thoughts, calls, _ = put_together(ours, asked(), [*dealt, ("", [EOS])])
    assert (content, thoughts) == ("", "I will use the tool Write ")
    assert calls == [("get_weather", '{"city": "Oslo"}')]


@pytest.mark.parametrize("reasoning", ["deepseek_r1", "holo2", "nemotron_v3", "glm45"])
def test_55195_the_start_of_thoughts_beside_their_text(reasoning):
    ours, released = (at_once(each, "<think>step one") for each in both(None, THINK, reasoning))
    assert ours[1] == "step one" and released[1] == "<think>step one"


def late(tokenizer, text, lag):
    """Steps of four tokens, as the detokenizer gives them beside a stop string of `lag` + 1 characters."""
    tokens, dealt, sent = tokenizer.split(text), [], 0
    for at in range(0, len(tokens), 4):
        known = "".join(tokens[: at + 4])
        shown = known if at + 4 >= len(tokens) else known[: max(len(known) - lag, sent)]
        dealt.append((shown[sent:], list(map(tokenizer.id, tokens[at : at + 4]))))
        sent = len(shown)
    return [*dealt, ("", [EOS])]


@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1", "nemotron_v3"])
@pytest.mark.parametrize("lag", [1, 3, 9, 25])
def test_51641_a_stop_string_holds_the_text_of_the_mark_back(reasoning, lag):
    text, stop = "<think>One thought, and another one. </think>The answer is long enough.", ["x" * (lag + 1)]
    said = []
    for parsers in both(None, THINK, reasoning):
        dealt = late(parsers.tokenizer, text, lag)
        said.append(put_together(parsers, asked(stop=stop, tools=None, tool_choice=None), dealt)[:2])
    assert said[0] == ("The answer is long enough.", "One thought, and another one. ")
    assert lag < 25 or said[1] != said[0]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_53269_a_call_that_was_cut_ends_with_length(choice):
    request, text = asked(tool_choice=choice), '[{"name": "get_weather", "parameters": {"city": "Os'
    if choice == "auto":
        text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os'
    reasons = []
    for parsers in both("hermes", TAGS):
        maker = make_delta_maker(parsers, request)
        for piece, ids in steps(parsers.tokenizer, text, "tokens"):
            delta = maker.take(piece, ids, [7])
        reasons.append(maker.finish(delta, "length")[0])
    assert reasons == ["length", "tool_calls"]


def test_53255_no_call_is_no_reason_to_call():
    request = asked(tool_choice="required")
    parsers, _ = both("hermes", TAGS)
    said = []
    for text in ("I would rather not.", '[{"name": "no_args", "parameters": {}}]'):
        message, called = make_message(request, parsers, "assistant", text)
        said += [finish_reason(request, "stop", called, message, released) for released in (False, True)]
    assert said == ["stop", "tool_calls", "tool_calls", "tool_calls"]
    assert finish_reason(asked(), "length", True, message) == "length"


@pytest.mark.parametrize(("tool", "syntax"), [("qwen3_coder", "xml"), ("qwen3_xml", "xml")])
def test_38885_none_where_null_is_allowed_is_null(tool, syntax):
    schema = {"type": "object", "properties": {"metadata": {"type": ["object", "null"]}, "text": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "update", "parameters": schema}}]
    body = "".join(f"<parameter={name}>\nNone\n</parameter>\n" for name in ("metadata", "text"))
    text = f"<tool_call>\n<function=update>\n{body}</function>\n</tool_call>"
    ours, _ = both(tool, TAGS)
    for deal in ("tokens", "characters", "all"):
        request = asked(tools=tools)
        ((_, arguments),) = put_together(ours, request, steps(ours.tokenizer, text, deal))[2]
        assert json.loads(arguments) == {"metadata": None, "text": "None"}, deal


@pytest.mark.parametrize("deal", ["tokens", "characters", "some", "many", "all"])
def test_30722_nested_lists_of_a_pythonic_call(deal):
    ours, _ = both("pythonic", [])
    rows = [["a", 1, [2.5, {"k": [True, None]}]], [], [["b]"]]]
    text = f"[f(rows={rows!r}, x=-1.5e10), g(y={[[]]!r})]"
    calls = put_together(ours, asked(), steps(ours.tokenizer, text, deal))[2]
    assert [(name, json.loads(each)) for name, each in calls] == [
        ("f", {"rows": rows, "x": -1.5e10}),
        ("g", {"y": [[]]}),
    ]


@pytest.mark.parametrize("deal", ["tokens", "characters", "some", "all"])
def test_13622_an_integer_argument_of_mistral(deal):
    ours, _ = both("mistral", ["[TOOL_CALLS]"])
    text = '[TOOL_CALLS][{"arguments": {"days": 12, "name": "no"}, "name": "get_weather"}, {"name": "no_args"}]'
    calls = put_together(ours, asked(), steps(ours.tokenizer, text, deal))[2]
    assert [(name, json.loads(each)) for name, each in calls] == [
        ("get_weather", {"days": 12, "name": "no"}), ("no_args", {}),
    ]  # fmt: skip


@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1", "glm45", "granite"])
def test_57726_a_raw_prompt_that_opens_no_thoughts_has_its_grammar_at_once(reasoning):
    ours, released = both(None, THINK, reasoning)
    think, end = (ours.tokenizer.id(mark) for mark in ("<think>", "</think>"))
    said = [ours.about_raw_prompt(ids) for ids in ([7, 8], [7, think, 8], [7, think, 8, end])]
    assert [each["reasoning_ended"] for each in said] == [True, reasoning == "granite", True]
    assert released.about_raw_prompt([7, 8]) == {}
    assert both(None, THINK)[0].about_raw_prompt([7, 8]) == {}


def test_every_report_is_in_the_table():
    from pathlib import Path

    page = (Path(__file__).resolve().parents[4] / "docs" / "parsers.md").read_text("utf-8")
    tests = [name for name in globals() if name.startswith("test_") and name[5].isdigit()]
    assert len(tests) >= 11
    assert all(f"vllm/{kind}/" in page for kind in ("issues", "pull"))
    assert all(f"{name.split('_')[1]}](" in page and name in page for name in tests)
    assert ParserManager.get_parser() is None
