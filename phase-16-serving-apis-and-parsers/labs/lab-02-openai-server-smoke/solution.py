"""Lab 16-02: what a client may rely on, and whether a server keeps it.

A stream is the list of the lines of a `/v1/chat/completions` response with `stream`, as they came: `data: {…}`, and at
the end `data: [DONE]`. Blank lines are gone already.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def predicted_refused() -> int:
    """Your prediction, made before you look. `BAD` in `real_run.py` holds 16 requests with which something is wrong.
    Each went to the server of vLLM 0.22.1. How many of the 16 were refused, with any status but 200?
    """
    return 13


@dataclass
class Reply:
    """One choice of a response, put together. `tool_calls` holds (name, arguments as they came) in order."""

    role: str | None = None
    content: str = ""
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None


def collect(lines: Sequence[str]) -> list[Reply]:
    """The choices of a stream that is in order, by index: what a user has at its end."""
    replies: dict[int, Reply] = {}
    for line in lines[:-1]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            reply, delta = replies.setdefault(choice["index"], Reply()), choice["delta"]
            reply.role = delta.get("role") or reply.role
            reply.content += delta.get("content") or ""
            reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(reply.tool_calls):
                    reply.tool_calls.append(("", ""))
                name, arguments = reply.tool_calls[call["index"]]
                function = call.get("function") or {}
                name, arguments = name + (function.get("name") or ""), arguments + (function.get("arguments") or "")
                reply.tool_calls[call["index"]] = name, arguments
    return [replies[index] for index in sorted(replies)]


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
    found: list[tuple[int, str]] = []
    chunks: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines):
        if (line == "data: [DONE]") != (number == len(lines) - 1):
            found.append((number, "[DONE] ends a stream, and nothing else does"))
        elif number < len(lines) - 1:
            try:
                chunk = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else None
            except ValueError:
                chunk = None
            if isinstance(chunk, dict):
                chunks.append((number, chunk))
            else:
                found.append((number, "no `data: ` with a JSON object"))
    choices: dict[int, _Choice] = {}
    for number, chunk in chunks:
        first = chunks[0][1]
        if chunk.get("object") != "chat.completion.chunk":
            found.append((number, f"object is {chunk.get('object')!r}"))
        changed = [key for key in ("id", "created", "model") if chunk.get(key) != first.get(key)]
        found += [(number, f"{key} has changed to {chunk.get(key)!r}") for key in changed]
        if not chunk.get("choices"):
            found += [(number, text) for text in _usage_faults(chunk, number == len(lines) - 2)]
        for choice in chunk.get("choices") or []:
            state = choices.setdefault(choice.get("index", 0), _Choice())
            found += [(number, text) for text in state.faults(choice)]
    end = max(len(lines) - 1, 0)
    return found + [(end, text) for state in choices.values() for text in state.faults_at_the_end()]


def _usage_faults(chunk: dict[str, Any], last: bool) -> list[str]:
    usage = chunk.get("usage")
    if not last or not isinstance(usage, dict):
        return ["no choices: only a last object with usage may have none"]
    total = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    return [] if usage.get("total_tokens") == total else [f"total_tokens is not {total}"]


@dataclass
class _Choice:
    """What was seen of one choice so far."""

    started: bool = False
    reason: str | None = None
    calls: list[str] = field(default_factory=list)

    def faults(self, choice: dict[str, Any]) -> list[str]:
        delta, found = choice.get("delta") or {}, list[str]()
        if self.reason is not None:
            found.append(f"a delta behind the finish reason {self.reason!r}")
        if delta.get("role") != (None if self.started else "assistant"):
            found.append(f"role is {delta.get('role')!r}")
        self.started = True
        content = delta.get("content")
        if content is not None and (not isinstance(content, str) or "\ufffd" in content):
            found.append(f"content is {content!r}")
        for call in delta.get("tool_calls") or []:
            found += self._call_faults(call)
        reason = choice.get("finish_reason")
        if reason is not None:
            self.reason = reason
            if reason not in ("stop", "length", "tool_calls") or (reason == "tool_calls" and not self.calls):
                found.append(f"finish_reason is {reason!r}, with {len(self.calls)} calls")
        return found

    def _call_faults(self, call: dict[str, Any]) -> list[str]:
        function, index, found = call.get("function") or {}, call.get("index"), list[str]()
        new = index == len(self.calls)
        if new:
            self.calls.append("")
            if not (call.get("id") and call.get("type") == "function" and function.get("name")):
                found.append("the first piece of a call lacks its id, its type or its name")
        elif index != len(self.calls) - 1:
            return [f"call {index} behind call {len(self.calls) - 1}"]
        elif function.get("name"):
            found.append("a name for a call that has one")
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            return [*found, f"arguments are {type(arguments).__name__}, no string"]
        self.calls[-1] += arguments or ""
        return found

    def faults_at_the_end(self) -> list[str]:
        if self.reason is None:
            return ["a choice without a finish reason"]
        found = []
        for arguments in self.calls if self.reason != "length" else []:
            try:
                good = isinstance(json.loads(arguments), dict)
            except ValueError:
                good = False
            found += [] if good else [f"arguments are no JSON object: {arguments!r}"]
        return found
