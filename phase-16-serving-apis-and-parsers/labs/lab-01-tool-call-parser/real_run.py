"""Eight texts through the Hermes tool parser of the real vLLM: whole, and one character at a time. Needs no model.

    python real_run.py --out FOLDER

The parser is called as vLLM's server calls it. What a client holds in the end is: the content pieces joined, and for
each call its name and its argument pieces joined.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.captures import answer

TEXTS = {
    "one call": 'Sure. <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
    "two calls": '<tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call> and '
    '<tool_call>{"name": "b", "arguments": {"y": "é 🚀"}}</tool_call>',
    "over many lines": 'Sure.\n<tool_call>\n{\n  "name": "get_weather",\n'
    '  "arguments": {\n    "city": "Paris"\n  }\n}\n</tool_call>',
    "text behind the call": '<tool_call>{"name": "a", "arguments": {}}</tool_call> I have asked.',
    "arguments first": '<tool_call>{"arguments": {"a": 1, "b": 2}, "name": "add"}</tool_call>',
    "a closing tag as data": '<tool_call>{"name": "say", "arguments": {"text": "write </tool_call>"}}</tool_call>',
    "cut off": 'Sure. <tool_call>{"name": "get_weather", "arguments": {"city": "Par',
    "no tag after all": "Generics are written List<too",
}


class Characters:
    """As much of a tokenizer as this parser asks for."""

    def get_vocab(self) -> dict[str, int]:
        return {}


def ask() -> dict:
    """Both results for each text."""
    import logging

    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    logging.disable(logging.CRITICAL)

    def whole(text: str) -> dict:
        found = Hermes2ProToolParser(Characters()).extract_tool_calls(text, None)
        calls = [[call.function.name, call.function.arguments] for call in found.tool_calls]
        return {"content": found.content or "", "calls": calls}

    def streamed(text: str) -> dict:
        parser, content, calls = Hermes2ProToolParser(Characters()), "", []
        for end in range(1, len(text) + 1):
            delta = parser.extract_tool_calls_streaming(text[: end - 1], text[:end], text[end - 1], [], [], [], None)
            content += (delta and delta.content) or ""
            for each in (delta and delta.tool_calls) or []:
                if each.function.name:
                    calls.append([each.function.name, ""])
                calls[each.index][1] += each.function.arguments or ""
        return {"content": content, "calls": calls}

    texts = TEXTS.items()
    return {"texts": [{"what": w, "text": t, "whole": whole(t), "streamed": streamed(t)} for w, t in texts]}


if __name__ == "__main__":
    answer(__doc__, ask)
