"""Llama's tool parser as vLLM 0.22.1 has it (`as_released.py`): only an answer that starts with a call has calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.json_calls import PartialJsonToolParser, malformed_json
from mini_vllm.tool_parsers.llama_tool_parser import Llama3JsonToolParser
from mini_vllm.tool_parsers.utils import is_complete_json, partial_json_loads

logger = init_logger(__name__)


class Llama3JsonAsReleased(PartialJsonToolParser, Llama3JsonToolParser):
    """Streams arguments as far as two readings agree, one part of a call a step.

    Upstream: upstream/vllm/tool_parsers/llama_tool_parser.py:39 — `Llama3JsonToolParser`.
    """

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
        """Text if the answer does not start with a call; else one part of a call a step."""
        if not current_text.startswith((self.bot_token, "{")):
            return DeltaMessage(content=delta_text)
        try:
            return self.next_delta(*self._read(current_text.removeprefix(self.bot_token)))
        except malformed_json():
            return None
        except Exception:
            logger.exception("Error trying to handle streaming tool call.")
            return None

    def _read(self, text: str) -> tuple[list[Any], list[bool]]:
        calls, is_complete, at = [], [], 0
        while at < len(text):
            call, size = partial_json_loads(text[at:], self.allowed())
            is_complete.append(is_complete_json(text[at : at + size]))
            at += size + len("; ")
            if "parameters" in call:
                assert "arguments" not in call, "model generated both parameters and arguments"
                call["arguments"] = call["parameters"]
            calls.append(call)
        return calls, is_complete
