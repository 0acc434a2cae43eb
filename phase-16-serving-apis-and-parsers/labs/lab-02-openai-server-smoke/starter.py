"""Lab 16-02: what a client may rely on, and whether a server keeps it.

A stream is the list of the lines of a `/v1/chat/completions` response with `stream`, as they came: `data: {…}`, and at
the end `data: [DONE]`. Blank lines are gone already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


def predicted_refused() -> int:
    """Your prediction, made before you look. `BAD` in `real_run.py` holds 16 requests with which something is wrong.
    Each went to the server of vLLM 0.22.1. How many of the 16 were refused, with any status but 200?
    """
    raise NotImplementedError("your prediction: how many of the 16 requests were refused")


@dataclass
class Reply:
    """One choice of a response, put together. `tool_calls` holds (name, arguments as they came) in order."""

    role: str | None = None
    content: str = ""
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None


def collect(lines: Sequence[str]) -> list[Reply]:
    """The choices of a stream that is in order, by index: what a user has at its end."""
    raise NotImplementedError("the choices of a stream, put together")


def violations(lines: Sequence[str]) -> list[tuple[int, str]]:
    """What in a stream breaks the protocol: (number of the line, from 0, what is wrong); [] for a stream in order.

    A client relies on this:

    - Each line is `data: ` and a JSON object, but for the last one, which is `data: [DONE]`.
    - All objects have `object` "chat.completion.chunk" and the same `id`, `created` and `model`.
    - The first delta of a choice has the role "assistant", and no other delta has one.
    - A delta's `content`, where it is not null, is a string without U+FFFD.
    - A choice gets exactly one finish reason: "stop", "length" or "tool_calls"; and nothing comes for it behind that.
      "tool_calls" is for a choice that has calls.
    - The calls of a choice are numbered from 0 on, each begun before the next. The first piece of a call has an id, the
      type "function" and a name, and no later piece has a name. Arguments are strings, and unless the choice ended by
      "length" the pieces of a call joined are a JSON object.
    - An object without choices is the last before [DONE]; it has `usage`, whose `total_tokens` is the sum of
      `prompt_tokens` and `completion_tokens`.

    What is missing is told for the line at which it is missed: a finish reason or a whole JSON object at the last line.
    One fault may be told several times, in your words; a line without fault is never told of.
    """
    raise NotImplementedError("what in a stream breaks the protocol, and in which line")
