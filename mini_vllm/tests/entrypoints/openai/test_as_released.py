"""`--parsers-as-released`: what a client of vLLM 0.22.1 sees, where ours is mended. Every delta of the parsers
themselves: `tests/tool_parsers/test_golden.py`, `tests/parser/test_golden.py`.
"""

import json

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("partial_json_parser")

from mini_vllm.entrypoints.openai.chat_completion.choice import make_message
from mini_vllm.entrypoints.openai.chat_completion.delta_as_released import make_delta_maker
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from mini_vllm.tests.entrypoints.openai.test_sent import parsers_of, put_together
from mini_vllm.tests.golden.parser_cases import CALLS, SYNTAXES, THINK, TOOLS, Words, steps


def both(tool, special, reasoning=None):
    """(ours, as released): the parsers of two servers, with a tokenizer each."""
    return [parsers_of(tool, Words(special), reasoning, as_released) for as_released in (False, True)]


def streamed(parsers, request, text, deal, prompt_ids=(7,)):
    return put_together(parsers, request, steps(parsers.tokenizer, text, deal), prompt_ids)


def auto(**more):
    return ChatCompletionRequest(**{"messages": [], "model": "m", "tools": TOOLS, "tool_choice": "auto", **more})


def test_a_call_in_one_step_ends_without_its_arguments():
    _, special, write = SYNTAXES["llama"]
    text = write(CALLS[0], ("", "", ""))
    ours, released = (streamed(each, auto(), text, "all") for each in both("llama3_json", special))
    assert ours[2] == [("get_weather", json.dumps(CALLS[0][0][1]))] and ours[3] == "tool_calls"
    assert [arguments for _, arguments in released[2]] in ([], [""])


def test_arguments_of_jamba_are_no_json():
    _, special, write = SYNTAXES["jamba"]
    ours, released = (
        streamed(each, auto(), write(CALLS[0], ("", "", "")), "tokens")[2][0][1] for each in both("jamba", special)
    )
    assert json.loads(ours) == CALLS[0][0][1]
    with pytest.raises(ValueError):
        json.loads(released)


@pytest.mark.parametrize(
    ("last", "sent"),
    [(" ", " 1}"), ("", "}"), ('{"a": 1', '{"a": 1}'), (None, None)],
)
def test_the_rest_of_the_last_call_is_sent_where_its_last_delta_has_arguments(last, sent):
    _, parsers = both("hermes", SYNTAXES["hermes"][1])
    maker = make_delta_maker(parsers, auto())
    maker.parser.tool_parser.prev_tool_call_arr = [{"name": "f", "arguments": {"a": 1}}]
    maker.parser.tool_parser.streamed_args_for_tool = ['{"a": ' if last == " " else '{"a": 1']
    function = DeltaFunctionCall(arguments=last)
    reason, delta = maker.finish(DeltaMessage(tool_calls=[DeltaToolCall(index=0, function=function)]), "stop")
    assert reason == "tool_calls" and delta.tool_calls[0].function.arguments == sent


def test_braces_in_a_text_of_a_required_call_are_counted():
    body = json.dumps([{"name": "get_weather", "parameters": {"city": "a } b"}}])
    request, special = auto(tool_choice="required"), SYNTAXES["hermes"][1]
    ours, released = (streamed(each, request, body, "tokens")[2][0][1] for each in both("hermes", special))
    assert json.loads(ours) == {"city": "a } b"} and released != ours


def test_a_stream_is_searched_for_calls_that_nobody_offered():
    _, special, write = SYNTAXES["hermes"]
    text, request = write(CALLS[0], ("", "", "")), ChatCompletionRequest(messages=[], model="m")
    ours, released = (streamed(each, request, text, "tokens") for each in both("hermes", special))
    assert (ours[0], ours[2]) == (text, []) and released[2][0][0] == "get_weather"


@pytest.mark.parametrize("reasoning", ["qwen3", "nemotron_v3"])
def test_thinking_that_is_switched_off_has_not_ended(reasoning):
    request = ChatCompletionRequest(messages=[], model="m", chat_template_kwargs={"enable_thinking": False})
    ours, released = both(None, THINK, reasoning)
    assert ours.about_reasoning(request, [7])["reasoning_ended"]
    assert not released.about_reasoning(request, [7])["reasoning_ended"]
    assert streamed(ours, request, "So.", "tokens")[:2] == ("So.", "")
    assert streamed(released, request, "So.", "tokens")[:2] == ("", "So.")


def test_a_whole_answer_behind_a_prompt_that_ends_the_thoughts_is_a_thought():
    request = ChatCompletionRequest(messages=[], model="m")
    said = []
    for parsers in both(None, THINK, "deepseek_r1"):
        prompt = [7, parsers.tokenizer.id("<think>"), parsers.tokenizer.id("</think>")]
        message, _ = make_message(request, parsers, "assistant", "So.", prompt)
        said.append((message.content, message.reasoning, *streamed(parsers, request, "So.", "tokens", prompt)[:2]))
    assert said == [("So.", None, "So.", ""), (None, "So.", "So.", "")]
