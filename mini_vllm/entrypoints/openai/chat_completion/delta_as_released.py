"""The deltas of a stream as vLLM 0.22.1 sends them, with its gaps: `--parsers-as-released`.

Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:400 — `chat_completion_stream_generator`.
"""

from __future__ import annotations

import json

from mini_vllm.entrypoints.openai.chat_completion.delta import DeltaMaker
from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionLogProbs,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
)
from mini_vllm.entrypoints.openai.engine.parsers import Parsers
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall


class DeltaMakerAsReleased(DeltaMaker):
    """Lets everything through, and looks at the end alone for arguments that were not sent."""

    tools_streamed = False

    def _admit(self, delta: DeltaMessage | None) -> DeltaMessage | None:
        self.tools_streamed = self.tools_streamed or (delta is not None and bool(delta.tool_calls))
        return delta

    def hold(self, logprobs: ChatCompletionLogProbs | None) -> None:
        """They are lost."""

    def finish(self, delta: DeltaMessage | None, ended: str) -> tuple[str, DeltaMessage | None]:
        """The reason that the client hears, and the last delta with the arguments that the tool parser still held."""
        if self.parser is None:
            return ended, delta
        called, delta = self._rest_of_last_call(delta)
        named = isinstance(self.request.tool_choice, ChatCompletionNamedToolChoiceParam)
        return ("tool_calls" if called or (self.tools_streamed and not named) else ended), delta

    def _rest_of_last_call(self, delta: DeltaMessage | None) -> tuple[bool, DeltaMessage | None]:
        """Whether the tool parser found calls, and the last delta with the arguments that it has not sent.

        These are looked for only where the last delta has arguments itself: not where it is empty.
        """
        parser = self.parser.tool_parser
        if parser is None or not parser.prev_tool_call_arr:
            return False, delta
        function = delta.tool_calls[0].function if delta is not None and delta.tool_calls else None
        if delta is None or function is None or function.arguments is None:
            return True, delta
        index = len(parser.prev_tool_call_arr) - 1
        arguments = parser.prev_tool_call_arr[index].get("arguments", {})
        whole = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        sent = parser.streamed_args_for_tool[index]
        sent = sent[: len(sent) - len(function.arguments)]
        return True, _with_arguments(delta, index, whole.replace(sent, "", 1))


def _with_arguments(delta: DeltaMessage, index: int, arguments: str) -> DeltaMessage:
    """The call `index` of a delta, with other arguments; all else of the delta is dropped, as upstream.

    Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:1572 — `_create_remaining_args_delta`.
    """
    call = next((call for call in delta.tool_calls if call.index == index), None)
    name = call.function.name if call and call.function else None
    function = DeltaFunctionCall(name=name, arguments=arguments)
    first = (call.id, call.type) if call else (None, None)
    return DeltaMessage(tool_calls=[DeltaToolCall(index=index, id=first[0], type=first[1], function=function)])


def make_delta_maker(parsers: Parsers, request: ChatCompletionRequest) -> DeltaMaker:
    """One for one choice of a stream, of the kind that `parsers` asks for."""
    return (DeltaMakerAsReleased if parsers.as_released else DeltaMaker)(parsers, request)
