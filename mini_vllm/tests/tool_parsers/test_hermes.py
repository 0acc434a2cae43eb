"""What the Hermes parser holds back, and where it takes a call to end; delta for delta it is in `test_golden.py`."""

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("partial_json_parser")

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.tool_parsers import ToolParserManager
from mini_vllm.tool_parsers.utils import partial_tag_overlap

REQUEST = ChatCompletionRequest(messages=[], model="m")


class Characters:
    """As much of a tokenizer as this parser asks for."""

    def get_vocab(self):
        return {}


def hermes():
    return ToolParserManager.get_tool_parser("hermes")(Characters())


def streamed(pieces):
    """(content, [(name, arguments)]) of a text in pieces."""
    parser, text, content, calls = hermes(), "", "", []
    for piece in pieces:
        delta = parser.extract_tool_calls_streaming(text, text + piece, piece, [], [], [], REQUEST)
        text += piece
        content += (delta.content or "") if delta else ""
        for call in delta.tool_calls if delta else []:
            if call.index == len(calls):
                calls.append(["", ""])
            calls[call.index][0] += call.function.name or ""
            calls[call.index][1] += call.function.arguments or ""
    return content, [tuple(call) for call in calls]


@pytest.mark.parametrize(
    ("text", "tag", "length"),
    [("Sure. <tool", "<tool_call>", 5), ("<tool_call>", "<tool_call>", 0), ("xaa", "aab", 2), ("aaa", "aaa", 2),
     ("", "a", 0), ("<<", "<t", 1)],
)  # fmt: skip
def test_overlap_of_an_end_and_a_tag(text, tag, length):
    assert partial_tag_overlap(text, tag) == length


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        ("no call", []),
        ("a <tool_call> {1} </tool_call> b <tool_call>{2}</tool_call>", [("{1}", True), ("{2}", True)]),
        ('<tool_call>{"a": 1}', [('{"a": 1}', True)]),
        ('<tool_call>{"a": 1}</tool_', [('{"a": 1}', True)]),
        ('<tool_call>{"a": 1', [('{"a": 1', False)]),
        ("<tool_call>", [("", False)]),
        ("<tool_call>x</tool_call><tool_call>", [("x", True), ("", False)]),
    ],
)
def test_what_stands_between_the_tags(text, bodies):
    assert hermes()._call_bodies(text) == bodies


def test_a_stream_in_single_characters():
    text = 'Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert streamed(text) == streamed([text]) == ("Sure. ", [("add", '{"a": 1}')])
