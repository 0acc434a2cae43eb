"""Lab 16-01: from text to tool calls, whole or as it comes.

A model that calls a tool writes it into its text: `<tool_call>`, a JSON object with a name and arguments,
`</tool_call>`. What stands between the tags is a block; all other text is content, a lone `</tool_call>` too.
"""

from __future__ import annotations

import json
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def predicted_disagreements() -> int:
    """Your prediction, made before you look. The eight texts of `captured/texts.json` went through the tool parser of
    vLLM 0.22.1 for this syntax twice: whole, and one character at a time. For how many of the eight does the client
    get something else (other content, other names, other arguments) when it streams?
    """
    return 4


def partial_tag_overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`: the most that can, never all of `tag`."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def parse_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The content of a finished text, and its calls in order.

    The content is the text without the blocks, every other character kept. A call is the JSON object as it stands in
    its block, space around it allowed; it has a `name`, which is a string, and `arguments`, which are an object.

    Raises:
        ValueError: for a block that is something else, "tool call N is not JSON with a name and arguments: 'BLOCK'",
            N counted from 1; for one that does not end, "tool call N does not end: 'BLOCK'". Whatever a model writes,
            nothing but ValueError is raised.
    """
    parser = StreamingToolParser()
    events = parser.feed(text) + parser.finish()
    content = "".join(value for kind, value in events if kind == "text")
    return content, [value for kind, value in events if kind == "tool_call"]


class StreamingToolParser:
    """The same for a text that comes in chunks, however it is cut: for a text that `parse_tool_calls` refuses, `feed`
    or `finish` raises ValueError, and for all others the events together say the same as it.

    An event is ("text", some content, not empty) or ("tool_call", the call). Each comes as early as it is certain:
    behind a `feed`, what is held back outside of a block could still become an opening tag, as a whole, and a call
    comes with the chunk that completes its closing tag.
    """

    def __init__(self) -> None:
        self._held, self._in_block, self._calls = "", False, 0

    def feed(self, chunk: str) -> list[tuple[str, Any]]:
        """What this chunk, perhaps an empty one, makes certain, in the order of the text.

        Raises:
            ValueError: as `parse_tool_calls`.
        """
        self._held += chunk
        events: list[tuple[str, Any]] = []
        while True:
            before, tag, after = self._held.partition(CLOSE if self._in_block else OPEN)
            if not tag:
                break
            if self._in_block:
                self._calls += 1
                events.append(("tool_call", _call(before, self._calls)))
            elif before:
                events.append(("text", before))
            self._held, self._in_block = after, not self._in_block
        if not self._in_block:
            keep = len(self._held) - partial_tag_overlap(self._held, OPEN)
            if keep:
                events.append(("text", self._held[:keep]))
            self._held = self._held[keep:]
        return events

    def finish(self) -> list[tuple[str, Any]]:
        """The text has ended: what was still held back. Called once, and nothing is fed behind it.

        Raises:
            ValueError: as `parse_tool_calls`.
        """
        if self._in_block:
            raise ValueError(f"tool call {self._calls + 1} does not end: {self._held!r}")
        return [("text", self._held)] if self._held else []


def _no_json(word: str) -> Any:
    """NaN, Infinity and -Infinity, which Python reads and JSON does not have."""
    raise ValueError(word)


def _call(block: str, number: int) -> dict[str, Any]:
    """A block as a call."""
    try:
        call = json.loads(block, parse_constant=_no_json)
        good = isinstance(call["name"], str) and isinstance(call["arguments"], dict)
    except (ValueError, TypeError, LookupError, RecursionError):
        good = False
    if not good:
        raise ValueError(f"tool call {number} is not JSON with a name and arguments: {block!r}")
    return call
