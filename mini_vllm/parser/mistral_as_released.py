"""Mistral's tool parser as vLLM 0.22.1 has it (`as_released.py`): from state to state, in both syntaxes.

The older syntax is a JSON list: a parser that is fed piece by piece says where in a call the text is.

ijson tells what it has read, not where. So each step's text is cut behind the next mark at which the state can change,
and the pieces are fed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.mistral_tool_parser import MistralToolCall, MistralToolParser
from mini_vllm.tool_parsers.tool_schema import Tool

logger = init_logger(__name__)


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

    def __init__(self, parser: MistralAsReleased, make_id: Callable[[], str]) -> None:
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


class MistralAsReleased(MistralToolParser):
    """Several calls in one step run into each other, or get each other's names.

    Upstream: upstream/vllm/tool_parsers/mistral_tool_parser.py:115 — `MistralToolParser`.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.streaming_state = StreamingState.WAITING_FOR_TOOL_START
        self.current_tool_name: str | None = None
        if self._is_pre_v11:
            self._json_stream = MistralJsonStream(self, MistralToolCall.generate_random_id)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: ChatCompletionRequest,
    ) -> DeltaMessage | None:
        """Text until the token has come, then parts of calls; an empty delta where a call goes on without news."""
        if self.bot_token_id not in current_token_ids and self.bot_token not in current_text:
            return DeltaMessage(content=delta_text)
        try:
            if self._is_pre_v11:
                has_token = self.bot_token_id in delta_token_ids or self.bot_token in delta_text
                return self._json_stream.feed(delta_text, has_token)
            return self._feed(delta_text)
        except Exception:
            logger.exception("Error trying to handle streaming tool call.")
            return None

    def _feed(self, delta_text: str) -> DeltaMessage | None:
        content = ""
        if self.streaming_state is StreamingState.WAITING_FOR_TOOL_START:
            if self.bot_token not in delta_text:
                return DeltaMessage(content=delta_text)
            if not delta_text.startswith(self.bot_token):  # text and a call in one step: a second call runs into it
                content, *rest = delta_text.split(self.bot_token)
                delta_text = self.bot_token + "".join(rest)
        calls = self._named_deltas(delta_text)
        fields: dict[str, Any] = ({"content": content} if content else {}) | ({"tool_calls": calls} if calls else {})
        parsing = (StreamingState.PARSING_ARGUMENTS, StreamingState.TOOL_COMPLETE)
        return DeltaMessage(**fields) if fields or self.streaming_state in parsing else None

    def _named_deltas(self, text: str) -> list[DeltaToolCall]:
        """Of `…name[ARGS]{…}[TOOL_CALLS]name[ARGS]{…`, which starts and ends anywhere."""
        if not text:
            return []
        in_call = self.streaming_state in (StreamingState.PARSING_NAME, StreamingState.PARSING_ARGUMENTS)
        if not in_call and text.startswith(self.bot_token):
            self.start_call()
            self.streaming_state = StreamingState.PARSING_NAME
            text = text.removeprefix(self.bot_token)
        tool_id = None
        if self.streaming_state is StreamingState.PARSING_NAME:
            name, brace, _ = text.partition("{")
            self.current_tool_name = (self.current_tool_name or "") + name
            if not brace:
                return []
            tool_id = MistralToolCall.generate_random_id()
            self.current_tool_name = self.current_tool_name.replace("[ARGS]", "")
            self.prev_tool_call_arr[self.current_tool_id]["name"] = self.current_tool_name
            text = text[len(name) :]
            self.streaming_state = StreamingState.PARSING_ARGUMENTS
        if self.streaming_state is not StreamingState.PARSING_ARGUMENTS:
            return []
        return self._arguments_deltas(text, tool_id)

    def _arguments_deltas(self, text: str, tool_id: str | None) -> list[DeltaToolCall]:
        arguments, token, _ = text.partition(self.bot_token)
        if token:
            self.streaming_state = StreamingState.TOOL_COMPLETE
        self.add_arguments(arguments)
        deltas = []
        if self.current_tool_name or arguments:
            name = {} if self.current_tool_name is None else {"name": self.current_tool_name}
            function = DeltaFunctionCall(**name, arguments=arguments)
            deltas.append(DeltaToolCall(index=self.current_tool_id, type="function", id=tool_id, function=function))
            self.current_tool_name = None
        return deltas + self._named_deltas(text[len(arguments) :] if token else "")

    def start_call(self) -> None:
        """A call begins."""
        self.current_tool_id += 1
        self.streamed_args_for_tool.append("")
        self.prev_tool_call_arr.append({})

    def add_arguments(self, arguments: str) -> None:
        """Remember arguments that are sent now."""
        self.streamed_args_for_tool[self.current_tool_id] += arguments
        call = self.prev_tool_call_arr[self.current_tool_id]
        call["arguments"] = self.streamed_args_for_tool[self.current_tool_id]
