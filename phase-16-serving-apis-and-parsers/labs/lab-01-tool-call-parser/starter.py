"""Lab 16-01: from text to tool calls, whole or as it comes.

A model that calls a tool writes it into its text: `<tool_call>`, a JSON object with a name and arguments,
`</tool_call>`. What stands between the tags is a block; all other text is content, a lone `</tool_call>` too.
"""

from __future__ import annotations

from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def predicted_disagreements() -> int:
    """Your prediction, made before you look. The eight texts of `captured/texts.json` went through the tool parser of
    vLLM 0.22.1 for this syntax twice: whole, and one character at a time. For how many of the eight does the client
    get something else (other content, other names, other arguments) when it streams?
    """
    raise NotImplementedError("your prediction: for how many of the eight texts the stream differs from the whole")


def partial_tag_overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`: the most that can, never all of `tag`."""
    raise NotImplementedError("how much of the text's end may be the beginning of the tag")


def parse_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The content of a finished text, and its calls in order.

    The content is the text without the blocks, every other character kept. A call is the JSON object as it stands in
    its block, space around it allowed; it has a `name`, which is a string, and `arguments`, which are an object.

    Raises:
        ValueError: for a block that is something else, "tool call N is not JSON with a name and arguments: 'BLOCK'",
            N counted from 1; for one that does not end, "tool call N does not end: 'BLOCK'". Whatever a model writes,
            nothing but ValueError is raised.
    """
    raise NotImplementedError("the content without its blocks, and the calls in order")


class StreamingToolParser:
    """The same for a text that comes in chunks, however it is cut: for a text that `parse_tool_calls` refuses, `feed`
    or `finish` raises ValueError, and for all others the events together say the same as it.

    An event is ("text", some content, not empty) or ("tool_call", the call). Each comes as early as it is certain:
    behind a `feed`, what is held back outside of a block could still become an opening tag, as a whole, and a call
    comes with the chunk that completes its closing tag.
    """

    def __init__(self) -> None:
        raise NotImplementedError("a parser in front of a text of which nothing has come yet")

    def feed(self, chunk: str) -> list[tuple[str, Any]]:
        """What this chunk, perhaps an empty one, makes certain, in the order of the text.

        Raises:
            ValueError: as `parse_tool_calls`.
        """
        raise NotImplementedError("the events that this chunk makes certain")

    def finish(self) -> list[tuple[str, Any]]:
        """The text has ended: what was still held back. Called once, and nothing is fed behind it.

        Raises:
            ValueError: as `parse_tool_calls`.
        """
        raise NotImplementedError("the events that were still held back")
