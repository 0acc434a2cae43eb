"""Parsers that read the whole text again in each step, and send what is new: a step may bring any number of calls.

No twin: upstream's parsers go from state to state, and most by one state a step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from mini_vllm.entrypoints.chat_utils import make_tool_call_id
from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser
from mini_vllm.tool_parsers.json_text import JsonPrefix
from mini_vllm.tool_parsers.tool_schema import Tool


class CallSoFar(NamedTuple):
    """A call whose name is whole. arguments: what of them cannot change any more."""

    name: str
    arguments: str = ""


class RereadingToolParser(ToolParser):
    """A subclass reads; this one knows what has been sent."""

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.sent_content = ""
        self.prefixes: list[JsonPrefix] = []

    @abstractmethod
    def read(self, text: str) -> tuple[str, list[CallSoFar]]:
        """The text that is no call, and the calls, of an answer as far as it has come.

        Both only grow from step to step. A call is there from when its name is whole.
        """
        raise NotImplementedError

    @staticmethod
    def new_id() -> str:
        """The id of a call."""
        return make_tool_call_id()

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
        """Everything that the step lets the client know."""
        text, calls = self.read(current_text)
        content = text[len(self.sent_content) :] if text.startswith(self.sent_content) else ""
        self.sent_content += content
        parts = [part for index, call in enumerate(calls) if (part := self._part(index, call))]
        if not parts:
            return DeltaMessage(content=content) if content else None
        return DeltaMessage(content=content, tool_calls=parts) if content else DeltaMessage(tool_calls=parts)

    def _part(self, index: int, call: CallSoFar) -> DeltaToolCall | None:
        """The name with the first part; None where nothing is new."""
        is_new = index == len(self.prev_tool_call_arr)
        if is_new:
            self.prev_tool_call_arr.append({"name": call.name})
            self.streamed_args_for_tool.append("")
            self.prefixes.append(JsonPrefix())
            self.current_tool_id, self.current_tool_name_sent = index, True
        sent = self.streamed_args_for_tool[index]
        new = call.arguments[len(sent) :] if call.arguments.startswith(sent) else ""
        new = "".join(takewhile(self.prefixes[index].grows, new))  # what can be no JSON waits for the whole answer
        if new:
            self.streamed_args_for_tool[index] = self.prev_tool_call_arr[index]["arguments"] = sent + new
        if is_new:
            function = DeltaFunctionCall(name=call.name, arguments=new)
            return DeltaToolCall(index=index, type="function", id=self.new_id(), function=function)
        return DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=new)) if new else None
