"""Calls in JSON that grows, which is read again in each step: what llama's, granite's and others' parsers share.

A name is sent once it is whole. Arguments are sent as far as two readings agree: what the library adds to close
a cut text ("}) changes from step to step, the rest does not.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser
from mini_vllm.tool_parsers.utils import (
    arguments_delta,
    call_message,
    dumps,
    find_common_prefix,
    name_delta,
)


def malformed_json() -> type[Exception]:
    """The error of a text that no further text can mend, or that is too short to tell."""
    from partial_json_parser.core.exceptions import MalformedJSON

    return MalformedJSON


class PartialJsonToolParser(ToolParser):
    """The calls read so far go in, what to send comes out."""

    def allowed(self) -> Any:
        """What the JSON may leave incomplete: a text only behind the name, for a name is sent as a whole."""
        from partial_json_parser.core.options import Allow

        return Allow.ALL if self.current_tool_name_sent else Allow.ALL & ~Allow.STR

    def next_delta(self, calls: list[Any], is_complete: list[bool]) -> DeltaMessage | None:
        """One idea a step: the end of the last call, or a name, or arguments.

        Args:
            calls: all calls so far. is_complete: of each, whether its text is whole.

        Upstream, in each of the parsers: upstream/vllm/tool_parsers/llama_tool_parser.py:219 — "current_tool_call".
        """
        if not calls:
            return None
        call = calls[self.current_tool_id]
        if len(calls) > self.current_tool_id + 1:
            delta = self._rest_of(call)
            self._start(len(calls) - 1)
            return delta
        delta = self._arguments_of(call, is_complete) if self.current_tool_name_sent else self._name_of(call)
        self.prev_tool_call_arr = calls
        return delta

    def _start(self, index: int) -> None:
        self.current_tool_id, self.current_tool_name_sent = index, False
        self.streamed_args_for_tool.append("")

    def _name_of(self, call: Any) -> DeltaMessage | None:
        name = call.get("name")
        if not name:
            return None
        delta = call_message(name_delta(self.current_tool_id, name))
        self.current_tool_name_sent = True
        return delta

    def _rest_of(self, call: Any) -> DeltaMessage | None:
        """A new call starts: what the one before has not sent."""
        if self.current_tool_id < 0 or not call.get("arguments"):
            return None
        return self.send_arguments(dumps(call["arguments"])[len(self.streamed_args_for_tool[self.current_tool_id]) :])

    def _arguments_of(self, call: Any, is_complete: list[bool]) -> DeltaMessage | None:
        if not call.get("arguments"):
            return None
        arguments = dumps(call["arguments"])
        sent = len(self.streamed_args_for_tool[self.current_tool_id])
        before = self.prev_tool_call_arr[self.current_tool_id].get("arguments")
        if is_complete[self.current_tool_id]:
            return self.send_arguments(arguments[sent:])
        if not before or dumps(before) == arguments:
            return None
        return self.send_arguments(find_common_prefix(dumps(before), arguments)[sent:])

    def send_arguments(self, arguments: str) -> DeltaMessage:
        """The next piece of the last call's arguments as a delta; it counts as sent."""
        delta = call_message(arguments_delta(self.current_tool_id, arguments))
        self.streamed_args_for_tool[self.current_tool_id] += arguments
        return delta

    def grown_arguments(self, before: Any, after: Any, delta_text: str) -> DeltaMessage | None:
        """As far as two readings agree, whether or not the call's text is whole.

        Upstream looks for `delta_text`, the step's own, in the arguments, and for what grew in the middle, and sends
        what is no JSON: upstream/vllm/tool_parsers/jamba_tool_parser.py:254 — "cur_arguments".
        """
        if not before or not after or dumps(before) == dumps(after):
            return None  # what closes the text is the same in both, too
        agreed = find_common_prefix(dumps(before), dumps(after))
        new = agreed[len(self.streamed_args_for_tool[self.current_tool_id]) :]
        return self.send_arguments(new) if new else None
