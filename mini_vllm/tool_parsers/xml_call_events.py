"""From tags and texts of a call in Qwen's syntax to deltas: what `qwen3xml_tool_parser.py` does with each event.

A text argument is sent while it is written, between quotes; a number or boolean as soon as it can be read as one; a
list or an object whole. What the model forgets to close is closed.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any
from xml.parsers.expat import ParserCreate

from mini_vllm.entrypoints.chat_utils import make_tool_call_id
from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from mini_vllm.tool_parsers.tool_schema import Tool, extract_types_from_schema, find_tool_properties
from mini_vllm.tool_parsers.utils import dumps

_TEXTS = ("string", "str", "text", "varchar", "char", "enum")
_WHOLE_NUMBERS, _NUMBERS = ("int", "uint", "long", "short", "unsigned"), ("num", "float")
_BOOLEANS = ("boolean", "bool", "binary")
_LISTS, _LIST_PREFIXES = ("array", "arr", "sequence"), ("dict", "list")


def known_type(stated: str) -> str:
    """A type of a schema, "string" for one that nobody knows.

    Upstream: upstream/vllm/tool_parsers/qwen3xml_tool_parser.py:1011 — `repair_param_type`.
    """
    exact = (*_TEXTS, *_BOOLEANS, *_LISTS, "object")
    prefixes = (*_WHOLE_NUMBERS, *_NUMBERS, *_LIST_PREFIXES)
    return stated if stated in exact or stated.startswith(prefixes) else "string"


def is_list_type(name: str) -> bool:
    """Values of this type are read when they are whole."""
    return name in _LISTS or name.startswith(_LIST_PREFIXES)


def value_so_far(text: str, name: str, whole: bool = False) -> str:
    """As `convert_param_value`, of a text that may still grow; null is null where no text is wanted.

    Numbers, and what may become "null" or "true", wait until the text is `whole`: upstream makes another number, a
    text or false of its beginning, and nothing, which is no JSON, of a null that is no text's.
    """
    kind, word = name.strip().lower(), text.lower()
    may_be_null = "null".startswith(word) or (kind not in _TEXTS and "None".startswith(text))
    if not whole and (kind.startswith((*_WHOLE_NUMBERS, *_NUMBERS)) or may_be_null):
        return ""
    if not whole and kind in _BOOLEANS and word != "true" and "true".startswith(word):
        return ""
    is_null = word in ("", "null") or text == "None"
    return "null" if is_null and kind not in _TEXTS else convert_param_value(text, name)


def convert_param_value(text: str, name: str) -> str:
    """JSON of a value, without quotes around a text; a null is written as nothing.

    Raises OverflowError for an infinite number.
    Upstream: upstream/vllm/tool_parsers/qwen3xml_tool_parser.py:1039 — `_convert_param_value`.
    """
    name = name.strip().lower()
    if text == "" or text.lower() == "null":
        return ""
    if name in _TEXTS:
        return dumps(text)[1:-1]
    try:
        if name.startswith(_WHOLE_NUMBERS):
            return dumps(int(text))
        if name.startswith(_NUMBERS):
            number = float(text)
            return dumps(number if number - int(number) != 0 else int(number))
    except ValueError:
        return text
    return dumps(text.lower() == "true") if name in _BOOLEANS else text


def read_json_or_python(text: str) -> str:
    """A list or an object, as JSON. Upstream reads Python alone, so that `[true]` is a text there, and so is `[1]` on a
    line of its own."""
    try:
        return dumps(json.loads(text))
    except ValueError:
        return read_python(text.strip())


def read_python(text: str) -> str:
    """A list or an object as Python writes it, as JSON; what cannot be read is a text."""
    try:
        value: Any = ast.literal_eval(text + "\n" * text.endswith(("\n", "\r")))
        return dumps(value)
    except Exception:
        return dumps(text)


class XmlCallEvents:
    """The state of the call that is being written. `deltas`: what this step has to send."""

    read_whole: Callable[[str], str] = staticmethod(read_json_or_python)

    def __init__(self) -> None:
        self.tools: list[Tool] = []
        self.reset_streaming_state()

    def reset_streaming_state(self) -> None:
        """A new answer."""
        self.deltas: list[DeltaMessage] = []
        self.tool_call_index = 0
        self.buffer, self.position = "", 0
        self._next_document()

    def _next_document(self) -> None:
        """Each call is an XML document of its own."""
        self.parser = ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start_element
        self.parser.EndElementHandler = self._end_element
        self.parser.CharacterDataHandler = self._char_data
        self.call_id: str | None = None
        self.function_name: str | None = None
        self.function_open = self.has_parameters = False
        self.text = ""
        """Text outside of calls that waits."""
        self.inside_parameter, self.whole_text, self.deferred = False, "", False
        """`deferred`: this parameter is read when it is whole, from `whole_text`."""
        self._end_parameter()

    def _end_parameter(self) -> None:
        self.param_name: str | None = None
        self.param_value = self.param_sent = ""
        self.newline_waits = self.quote_sent = self.deferred = self.seen_break = False

    def param_type(self, name: str | None) -> str:
        """The type that the tool's schema states for an argument; "string" where it says nothing."""
        if not self.tools or not self.function_name or not name:
            return "string"
        schema = find_tool_properties(self.tools, self.function_name).get(name)
        return self.stated_type(schema) if isinstance(schema, dict) else "string"

    @staticmethod
    def stated_type(schema: dict[str, Any]) -> str:
        """The one type that a value has if it is not null; "string" of several. Upstream takes every union for text."""
        types = [each for each in extract_types_from_schema(schema) if each != "null"]
        return known_type(types[0]) if len(types) == 1 else "string"

    def emit(self, arguments: str, name: str | None = None) -> None:
        """A part of the call; each has the call's id, so that the parts of one step can be joined."""
        function = DeltaFunctionCall(name=name, arguments=arguments)
        call = DeltaToolCall(index=self.tool_call_index - 1, id=self.call_id, type="function", function=function)
        self.deltas.append(DeltaMessage(tool_calls=[call]))

    def emit_text(self) -> None:
        """The text that waits."""
        self.deltas.append(DeltaMessage(content=self.text))

    def close(self, parameter: bool = True, function: bool = False, call: bool = False) -> None:
        """What is open is closed, from the inside out."""
        if parameter and self.param_name:
            self._end_element("parameter")
        if function and self.function_name:
            self._end_element("function")
        if call and self.call_id:
            self._end_element("tool_call")

    def _start_element(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "tool_call":
            self.close(function=True, call=True)
            self.has_parameters, self.call_id = False, make_tool_call_id()
            self.tool_call_index += 1
        elif tag.startswith("function"):
            if not self.call_id:
                self._start_element("tool_call", {})
            self.close(function=True)
            self.function_name, self.function_open = attributes.get("name"), True
            if self.function_name:
                self.emit("", name=self.function_name)
        elif tag.startswith("parameter"):
            self.close()
            self.param_name = attributes.get("name")
            self.param_value, self.param_sent, self.quote_sent, self.seen_break = "", "", False, False
            if self.param_name:
                self.emit(f'{", " if self.has_parameters else "{"}"{self.param_name}": ')

    def _char_data(self, data: str) -> None:
        """Text inside a parameter: its first line break is dropped, its last one waits for what follows."""
        if not self.param_name or self.deferred:
            return
        name = self.param_type(self.param_name)
        data = self.behind_first_break(data)
        if name in _TEXTS and not self.quote_sent:
            self.emit('"')
            self.quote_sent = True
        if not data:
            return
        data = "\n" * self.newline_waits + data
        self.newline_waits = data.endswith("\n")
        self.param_value += data.removesuffix("\n")
        self._emit_value(name)

    def behind_first_break(self, data: str) -> str:
        """Of a parameter's first text, what follows the line break that belongs to the syntax."""
        if self.seen_break or not data:
            return data
        self.seen_break = True
        return data.removeprefix("\n")

    def _emit_value(self, name: str, whole: bool = False) -> None:
        """What of the value is new; `whole`: nothing follows."""
        value = value_so_far(self.param_value, name, whole)
        if whole and value == self.param_sent:
            return
        new, self.param_sent = value[len(self.param_sent) :], value
        self.emit(new)

    def _end_element(self, tag: str) -> None:
        if tag.startswith("function") or tag == "tool_call":
            self.close()
        if tag.startswith("parameter") and self.param_name:
            self._close_parameter()
        elif tag.startswith("function"):
            self.emit("}" if self.has_parameters else "{}")
            self.function_open = False
        elif tag == "tool_call":
            if self.function_open:
                self._end_element("function")
            self.emit("")
            if self.text.strip():
                self.emit_text()
            self._next_document()

    def _close_parameter(self) -> None:
        self.has_parameters = True
        if self.deferred:
            self.emit(self.read_whole(self.whole_text))
        else:
            self._emit_value(self.param_type(self.param_name), whole=True)
        if not self.deferred and self.param_type(self.param_name) in _TEXTS:
            self.emit('"' if self.param_value or self.quote_sent else '""')
        self._end_parameter()
