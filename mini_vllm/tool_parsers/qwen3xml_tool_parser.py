"""Qwen 3 Coder as XML. Upstream twin: `vllm/tool_parsers/qwen3xml_tool_parser.py`.

The syntax of `qwen3coder_tool_parser.py`. Each step's text is cut at its tags, made into XML that Python's own parser
accepts, and the parser's events become deltas (`xml_call_events.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import (
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from mini_vllm.logger import init_logger
from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser, no_tool_calls
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.xml_call_events import XmlCallEvents, is_list_type

logger = init_logger(__name__)
CALL, FUNCTION, PARAMETER = "<tool_call>", "<function=", "<parameter="
CALL_END, FUNCTION_END, PARAMETER_END = "</tool_call>", "</function>", "</parameter>"
_TAGS = (CALL, FUNCTION, PARAMETER, CALL_END, FUNCTION_END, PARAMETER_END)


class StreamingXMLToolCallParser(XmlCallEvents):
    """Feeds the XML parser.

    Upstream: upstream/vllm/tool_parsers/qwen3xml_tool_parser.py:34 — `StreamingXMLToolCallParser`.
    """

    def parse_single_streaming_chunks(self, chunk: str) -> DeltaMessage:
        """What a step's text says; empty where it says nothing yet. A tag that XML did not see is closed by hand."""
        self.deltas = []
        self.buffer += chunk
        chunk = self.of_last_call(chunk)
        if self._feed_elements():
            self._close_unseen(chunk)
            return _merged(self.deltas)
        if self.text and self.tool_call_index == 0:
            text, self.text = self.text, ""
            return DeltaMessage(content=text)
        if self.call_id is not None and (FUNCTION_END in chunk or CALL_END in chunk):
            self.close(function=FUNCTION_END in chunk)
            if CALL_END in chunk:
                self._end_element("tool_call")
            return _merged(self.deltas)
        return DeltaMessage(content=None)

    def of_last_call(self, chunk: str) -> str:
        """What of a step's text can end the call that is open: what stands behind the last start. Upstream takes the
        end of a call before it for this one's."""
        return chunk[max(chunk.rfind(CALL), chunk.rfind(FUNCTION), 0) :]

    def _close_unseen(self, chunk: str) -> None:
        """Where XML has failed, its end tags are not seen."""
        try:
            if self.call_id is not None and FUNCTION_END in chunk and not self._has_sent("}", "{}"):
                self.close(function=True)
            if self.call_id is not None and CALL_END in chunk and not self._has_sent(""):
                self.close(function=True)
                self._end_element("tool_call")
        except Exception as error:
            logger.warning("Error with fallback parsing: %s", error)

    def _has_sent(self, *arguments: str) -> bool:
        calls = [call for delta in self.deltas for call in delta.tool_calls if call.id == self.call_id]
        return any(call.function and call.function.arguments in arguments for call in calls)

    @staticmethod
    def safe(text: str) -> str:
        """Text that XML gives back as it is; it would make a line break of a carriage return."""
        return escape(text, {'"': "&quot;", "'": "&apos;", "\r": "&#13;"})

    def _feed_elements(self) -> bool:
        """True where at least one went in."""
        fed = False
        while (element := self._next_element()) is not None:
            if self.call_id is None and not element.startswith((CALL, FUNCTION, PARAMETER)):
                self.text += element
            else:
                try:
                    self._feed(element)
                    fed = True
                except Exception as error:
                    logger.warning("Error when parsing XML elements: %s", error)
            self.position += len(element)
        return fed

    def _next_element(self) -> str | None:
        """A tag, or the text up to the next one; None: nothing, or a tag that may still go on."""
        rest = self.buffer[self.position :]
        if not rest.startswith("<"):
            return rest.partition("<")[0] or None
        mark = re.search("[<>]", rest[1:])
        if mark:
            return rest[: mark.end() + (mark.group() == ">")]
        if self.call_id is not None or rest.startswith(FUNCTION) or CALL.startswith(rest) or FUNCTION.startswith(rest):
            return None
        return rest

    def _feed(self, element: str) -> None:
        xml = self._as_xml(element)
        starts_call = xml.strip().startswith(CALL)
        if self.tool_call_index == 0 and self.text and (starts_call or xml.strip().startswith("<function name=")):
            self.emit_text()
            self.text = ""
        if starts_call and self.tool_call_index > 0 and self.call_id:
            self._leave_call()
        self.parser.Parse(xml, False)

    def _leave_call(self) -> None:
        """A call starts inside of another: that one is over."""
        self.close()
        if self.function_open or self.function_name:
            self._end_element("function")
        self.emit("")
        calls = self.deltas.pop().tool_calls
        self.deltas.append(DeltaMessage(role=None, content=None, reasoning=None, tool_calls=calls))
        self._next_document()

    def _as_xml(self, element: str) -> str:
        """Tags with their name as an attribute, and text that is safe.

        Inside a parameter that waits to be whole everything is collected, tags too, until its end.
        """
        xml = re.sub(r"<(function|parameter)=([^>]+)>", r'<\1 name="\2">', element)
        if self.inside_parameter:
            return self._inside(element, xml)
        if xml.startswith("<parameter name="):
            name = re.match(r'<parameter name="([^"]+)">', xml)
            self._coming = name.group(1) if name else self._coming
            self.inside_parameter, self.whole_text = True, ""
            return xml
        return xml if element.startswith(_TAGS) else self.safe(xml)

    _coming: str | None = None

    def _inside(self, element: str, xml: str) -> str:
        if xml.startswith(PARAMETER_END):
            self.inside_parameter, self.deferred = False, True
            return self.safe(self.whole_text) + PARAMETER_END
        if not self.whole_text and not self._waits(element):
            self.inside_parameter = False
            return self.safe(element)
        self.whole_text += element
        return ""

    def _waits(self, element: str) -> bool:
        """Lists always; an object where its first piece looks as if Python had written it."""
        name = self.param_type(self._coming)
        looks = "'" in element and any(mark in element for mark in "[{(")
        return is_list_type(name) or (name == "object" and looks)


def _merged(deltas: list[DeltaMessage]) -> DeltaMessage:
    """All deltas of a step as one: parts of one call become one part."""
    if len(deltas) < 2:
        return deltas[0] if deltas else DeltaMessage(content=None)
    calls: dict[str | None, DeltaToolCall] = {}
    for part in (call for delta in deltas for call in delta.tool_calls):
        first = calls.setdefault(part.id, part)
        if first is not part and first.function and part.function:
            first.function.name = part.function.name or first.function.name
            first.function.arguments = (first.function.arguments or "") + (part.function.arguments or "")
    content = "".join(delta.content or "" for delta in deltas)
    return DeltaMessage(content=content or None, tool_calls=list(calls.values()))


class Qwen3XMLToolParser(ToolParser):
    """Keeps books on what the stream has sent.

    Upstream: upstream/vllm/tool_parsers/qwen3xml_tool_parser.py:1148 — `Qwen3XMLToolParser`.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self.parser = StreamingXMLToolCallParser()

    def _reset(self) -> None:
        self.parser.reset_streaming_state()
        self.parser.tools = self.tools
        self.prev_tool_call_arr, self.streamed_args_for_tool = [], []

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """The whole answer as one step."""
        self._reset()
        found = self.parser.parse_single_streaming_chunks(model_output)
        if not found.tool_calls:
            return no_tool_calls(found.content)
        tool_calls = []
        for call in found.tool_calls:
            if call.function and call.function.name:
                self._note(call)
                function = FunctionCall(name=call.function.name, arguments=call.function.arguments or "")
                tool_calls.append(ToolCall(id=call.id or "", function=function))
        return ExtractedToolCallInformation(tools_called=bool(tool_calls), tool_calls=tool_calls, content=found.content)

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
        """Everything that the step lets the client know, in one delta."""
        if not previous_text:
            self._reset()
        if not delta_text and delta_token_ids:  # a token without text: an empty delta where all is said
            calls = self.parser.tool_call_index
            closed = current_text.count(CALL) == current_text.count(CALL_END)
            return DeltaMessage(content="") if (calls and closed) or (not calls and current_text) else None
        delta = self.parser.parse_single_streaming_chunks(delta_text)
        for call in delta.tool_calls:
            self._note(call)
        return delta if delta.content is not None or delta.tool_calls else None

    def _note(self, call: DeltaToolCall) -> None:
        assert call.function is not None
        while len(self.prev_tool_call_arr) <= call.index:
            self.prev_tool_call_arr.append({"name": "", "arguments": ""})
            self.streamed_args_for_tool.append("")
        noted = self.prev_tool_call_arr[call.index]
        noted["name"] = call.function.name or noted["name"]
        noted["arguments"] += call.function.arguments or ""
        self.streamed_args_for_tool[call.index] += call.function.arguments or ""
