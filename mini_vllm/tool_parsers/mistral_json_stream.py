"""Mistral's older syntax as a stream: a JSON parser that is fed piece by piece says where in a call the text is.

ijson tells what it has read, not where. So each step's text is cut behind the next mark at which the state can change,
and the pieces are fed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall

if TYPE_CHECKING:
    from mini_vllm.tool_parsers.mistral_tool_parser import MistralToolParser


class StreamingState(Enum):
    """Where the text is (upstream/vllm/tool_parsers/mistral_tool_parser.py:63 — `StreamingState`)."""

    WAITING_FOR_TOOL_START = auto()
    WAITING_FOR_TOOL_KEY = auto()
    PARSING_NAME = auto()
    PARSING_NAME_COMPLETED = auto()
    WAITING_FOR_ARGUMENTS_START = auto()
    PARSING_ARGUMENTS = auto()
    PARSING_ARGUMENTS_COMPLETED = auto()
    TOOL_COMPLETE = auto()
    ALL_TOOLS_COMPLETE = auto()


S = StreamingState
_NEXT_MARK = {
    S.WAITING_FOR_TOOL_START: "[{]",
    S.WAITING_FOR_TOOL_KEY: "[:{]",
    S.PARSING_NAME: r"[,\]]",
    S.PARSING_NAME_COMPLETED: r"[}\]]",
    S.WAITING_FOR_ARGUMENTS_START: "[{]",
    S.PARSING_ARGUMENTS: "[}]",
    S.PARSING_ARGUMENTS_COMPLETED: r"[}\]]",
    S.TOOL_COMPLETE: r"[{\]]",
}
_STATE_AFTER = {
    ("item", "start_map", None): S.WAITING_FOR_TOOL_KEY,
    ("item", "map_key", "name"): S.PARSING_NAME,
    ("item", "map_key", "arguments"): S.WAITING_FOR_ARGUMENTS_START,
    ("item.arguments", "start_map", None): S.PARSING_ARGUMENTS,
    ("item.arguments", "end_map", None): S.PARSING_ARGUMENTS_COMPLETED,
    ("item", "end_map", None): S.TOOL_COMPLETE,
    ("", "end_array", None): S.ALL_TOOLS_COMPLETE,
}
"""(where, event, value) of ijson to the state that it leads to."""


class MistralJsonStream:
    """Reads `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]` for a parser, which keeps the state.

    Upstream: upstream/vllm/tool_parsers/mistral_tool_parser.py:713 — `_extract_tool_calls_streaming_pre_v11_tokenizer`.
    """

    def __init__(self, parser: MistralToolParser, make_id: Callable[[], str]) -> None:
        import ijson

        self.parser, self.make_id = parser, make_id
        self.new_id: str | None = None
        self.events: list[tuple[str, str, Any]] = ijson.sendable_list()
        self.json = ijson.parse_coro(self.events)

    def feed(self, text: str, has_token: bool) -> DeltaMessage | None:
        """One step. Raises what ijson raises for text that is not JSON, now and from then on."""
        parser, content = self.parser, ""
        if has_token:
            content, *rest = text.split(parser.bot_token)
            text = "".join(rest)
        call, calls = self._part(), []
        while text:
            before = parser.streaming_state
            if before is S.ALL_TOOLS_COMPLETE:
                content, text = text, ""
                continue
            piece, text = self._cut(text, before)
            self._read(piece)
            if self._starts_a_call(before):
                calls += self._sent(call)
                parser.start_call()
                self.new_id = self.make_id()
                call = self._part()
            self._fill(call, piece, before)
        calls += self._sent(call)
        fields: dict[str, Any] = ({"content": content} if content else {}) | ({"tool_calls": calls} if calls else {})
        if fields or parser.streaming_state is S.ALL_TOOLS_COMPLETE:
            return DeltaMessage(**fields)
        return None

    def _part(self) -> DeltaToolCall:
        return DeltaToolCall(index=self.parser.current_tool_id, type="function", function=DeltaFunctionCall())

    @staticmethod
    def _cut(text: str, state: StreamingState) -> tuple[str, str]:
        mark = re.search(_NEXT_MARK[state], text)
        end = mark.end() if mark else len(text)
        return text[:end], text[end:]

    def _read(self, piece: str) -> None:
        try:
            self.json.send(piece.encode())
        finally:  # what was read before an error counts
            for event in self.events:
                self._follow(*event)
            del self.events[:]

    def _follow(self, where: str, event: str, value: Any) -> None:
        if (where, event) == ("item.name", "string"):
            self.parser.current_tool_name = value
            self.parser.streaming_state = S.PARSING_NAME_COMPLETED
        elif event in ("start_map", "end_map", "map_key", "end_array"):
            self.parser.streaming_state = _STATE_AFTER.get((where, event, value), self.parser.streaming_state)

    def _starts_a_call(self, before: StreamingState) -> bool:
        outside = (S.WAITING_FOR_TOOL_START, S.TOOL_COMPLETE)
        now = self.parser.streaming_state
        return before in outside and now is not before and now not in (*outside, S.ALL_TOOLS_COMPLETE)

    def _fill(self, call: DeltaToolCall, piece: str, before: StreamingState) -> None:
        """Into `call`, what the piece says of it."""
        parser, function = self.parser, call.function
        assert function is not None
        if parser.current_tool_name is not None:
            function.name = parser.current_tool_name
            parser.prev_tool_call_arr[parser.current_tool_id]["name"] = function.name
            parser.current_tool_name = None
        now = parser.streaming_state
        if now in (S.PARSING_NAME_COMPLETED, S.PARSING_ARGUMENTS_COMPLETED):
            parser.streaming_state = S.WAITING_FOR_TOOL_KEY
        if now in (S.PARSING_ARGUMENTS, S.PARSING_ARGUMENTS_COMPLETED):
            function.arguments = (function.arguments or "") + piece
            if before is not S.PARSING_ARGUMENTS:
                function.arguments = function.arguments.lstrip()

    def _sent(self, call: DeltaToolCall) -> list[DeltaToolCall]:
        """The part with its id, if it is the first, where there is anything in it."""
        assert call.function is not None
        if not call.function.model_fields_set:
            return []
        if self.new_id is not None:
            call.id, self.new_id = self.new_id, None
        if call.function.arguments is not None:
            self.parser.add_arguments(call.function.arguments)
        return [call]
