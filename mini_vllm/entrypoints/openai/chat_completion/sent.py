"""What the client of a stream has of its answer, so that all deltas together are the whole answer.

A tool parser reads a text that grows, and some fall behind, or astray, where several tokens come in one step or a text
holds a brace. So each part of a call is looked at before it goes out, and what lacks at the end is sent then.
Upstream looks at the end alone, at the last call, and only where the last delta has arguments itself:
upstream/vllm/entrypoints/openai/chat_completion/serving.py:1572 — `_create_remaining_args_delta`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatMessage
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from mini_vllm.tool_parsers.json_text import JsonPrefix, rest_of_json


@dataclass
class SentCall:
    """A call of which the client knows the name; `arguments` so far."""

    name: str
    arguments: str = ""
    prefix: JsonPrefix = field(default_factory=JsonPrefix)
    astray: bool = False


@dataclass
class Sent:
    """One answer, as far as it went out. astray: no further call is believed before the end."""

    content: str = ""
    reasoning: str = ""
    calls: list[SentCall] = field(default_factory=list)
    astray: bool = False

    def admit(self, delta: DeltaMessage | None) -> DeltaMessage | None:
        """The delta without the parts of calls that cannot be right; None where nothing is left of it.

        A call begins with its name, they come in order, and their arguments grow into JSON.
        """
        if delta is None:
            return None
        self.content += delta.content or ""
        self.reasoning += delta.reasoning or ""
        if not delta.tool_calls:
            return delta
        kept = [part for part in delta.tool_calls if self._admit_part(part)]
        if len(kept) == len(delta.tool_calls):
            return delta
        if not kept and not delta.content and not delta.reasoning:
            return None
        return delta.model_copy(update={"tool_calls": kept})

    def _admit_part(self, part: DeltaToolCall) -> bool:
        function = part.function or DeltaFunctionCall()
        if part.index == len(self.calls) and function.name and not self.astray:
            self.calls.append(SentCall(function.name))
        elif not 0 <= part.index < len(self.calls) or function.name:
            self.astray = True
            return False
        call, arguments = self.calls[part.index], function.arguments or ""
        if not call.astray and call.prefix.grows(arguments):
            call.arguments += arguments
            return True
        call.astray = True
        function.arguments = ""
        return bool(function.name)

    def missing(self, message: ChatMessage) -> DeltaMessage | None:
        """What the whole answer has and the client has not; None where that is nothing, or cannot be put right."""
        content = ""
        if message.tool_calls or not self.calls:
            content = _rest(self.content, message.content)
        begun = self.reasoning or not self.content
        reasoning = _rest(self.reasoning, message.reasoning) if begun else ""
        parts = []
        for index, call in enumerate(message.tool_calls):
            name, arguments = call.function.name, call.function.arguments
            if index >= len(self.calls):
                whole = DeltaFunctionCall(name=name, arguments=arguments)
                parts.append(DeltaToolCall(id=call.id, type="function", index=index, function=whole))
                self.calls.append(SentCall(name, arguments))
            elif self.calls[index].name == name and (rest := rest_of_json(self.calls[index].arguments, arguments)):
                parts.append(DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=rest)))
        delta = DeltaMessage()
        for name, value in (("content", content), ("reasoning", reasoning), ("tool_calls", parts)):
            if value:
                setattr(delta, name, value)
        return delta if delta.model_fields_set else None


def joined(first: DeltaMessage | None, then: DeltaMessage | None) -> DeltaMessage | None:
    """Two deltas as one: a call of which both have arguments stands in it once."""
    if first is None or then is None:
        return then if first is None else first
    for name in ("content", "reasoning"):
        if getattr(then, name):
            setattr(first, name, (getattr(first, name) or "") + getattr(then, name))
    for part in then.tool_calls:
        same = next((each for each in first.tool_calls if each.index == part.index and each.function), None)
        if same is None:
            first.tool_calls = [*first.tool_calls, part]
        elif same.function is not None and part.function is not None:
            same.function.arguments = (same.function.arguments or "") + (part.function.arguments or "")
    return first


def _rest(sent: str, whole: str | None) -> str:
    """What of a text lacks at its end; nothing where only spaces do."""
    rest = whole[len(sent) :] if whole and whole.startswith(sent) else ""
    return rest if rest.strip() else ""
