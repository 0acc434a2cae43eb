"""Llama 3.2 and 4, ToolACE. Upstream twin: `vllm/tool_parsers/pythonic_tool_parser.py`.

[get_weather(city='Paris', days=3), get_time()]
"""

from __future__ import annotations

from collections.abc import Sequence

import regex as re

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import (
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    ToolCall,
)
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser, no_tool_calls
from mini_vllm.tool_parsers.pythonic_calls import compute_tool_delta, make_valid_python, parse_calls

logger = init_logger(__name__)
REGEX_TIMEOUT_SECONDS = 1
_CALL = r"[a-zA-Z]+\w*\(([a-zA-Z]+\w*=.*,\s*)*([a-zA-Z]+\w*=.*\s{})?\)"


class PythonicToolParser(ToolParser):
    """The answer is a list of calls, or it is text.

    Upstream: upstream/vllm/tool_parsers/pythonic_tool_parser.py:33 — `PythonicToolParser`.
    """

    parse_calls = staticmethod(parse_calls)
    make_valid_python = staticmethod(make_valid_python)
    TOOL_CALL_REGEX = re.compile(rf"\[({_CALL.format('')},\s*)*({_CALL.format('*')}\s*)+\]", re.DOTALL)

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """All of it must be the list. The pattern, which can take very long, has a second."""
        try:
            if not self.TOOL_CALL_REGEX.match(model_output, timeout=REGEX_TIMEOUT_SECONDS):
                return no_tool_calls(model_output)
            tool_calls = self.parse_calls(model_output)
        except TimeoutError:
            logger.warning("Regex timeout occurred when matching tool call pattern.")
            return no_tool_calls(model_output)
        except Exception:
            logger.exception("Error in extracting tool call from response.")
            return no_tool_calls(model_output)
        return ExtractedToolCallInformation(tools_called=True, tool_calls=tool_calls, content=None)

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
        """Text if the answer does not start with a bracket; else what the calls have grown by."""
        if not current_text.startswith("["):
            return DeltaMessage(content=delta_text)
        try:
            closed = self.make_valid_python(current_text)
            if closed is None:
                return None
            text, added = closed
            deltas = self._deltas(self.parse_calls(text), added)
        except Exception:
            logger.exception("Error trying to handle streaming tool call.")
            return None
        if deltas:
            # calls were made, and no arguments are left for the server to send at the end
            self.prev_tool_call_arr = self.prev_tool_call_arr or [{"arguments": {}}]
            return DeltaMessage(tool_calls=deltas)
        # an empty delta when all is said, for the reason why it ends
        return DeltaMessage(content="") if not added and self.current_tool_id > 0 else None

    def _deltas(self, calls: list[ToolCall], added: str) -> list[DeltaToolCall]:
        """Of the call that is being written and those behind it."""
        deltas = []
        for index in range(max(self.current_tool_id, 0), len(calls)):
            if len(self.streamed_args_for_tool) == index:
                self.streamed_args_for_tool.append("")
            is_complete = index < len(calls) - 1 or ")]" not in added
            self.current_tool_id = index + is_complete
            delta = compute_tool_delta(
                self.streamed_args_for_tool[index], calls[index], index, "" if is_complete else _withheld(added)
            )
            if delta is None:
                continue
            deltas.append(delta)
            if delta.function is not None:
                self.streamed_args_for_tool[index] += delta.function.arguments or ""
        return deltas


def _withheld(added: str) -> str:
    """What the closing marks of an open call (their last two are ")]") are in JSON."""
    marks = added[:-2] + ("}" if added[-2] == ")" else "")
    return marks.replace("'", '"')
