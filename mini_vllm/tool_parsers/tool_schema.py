"""What the schemas of a request's tools say: for the grammar of a forced call, and for the types of its arguments."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionNamedToolChoiceParam

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
Tool = Any
"""A `ChatCompletionToolsParam`, or a function tool of the responses API: the same fields without `.function`."""


def is_function_tool(tool: Tool) -> bool:
    """True for a tool with a name and a schema; other kinds are the server's own, such as a web search."""
    return getattr(tool, "type", None) == "function"


def _name_and_parameters(tool: Tool) -> tuple[str, dict[str, Any] | None]:
    function: Any = getattr(tool, "function", tool)
    return function.name, function.parameters


def find_tool_properties(tools: Sequence[Tool] | None, tool_name: str) -> dict[str, Any]:
    """Schemas of a tool's arguments by name; empty for a tool that is not there.

    Upstream: upstream/vllm/tool_parsers/utils.py:158 — `find_tool_properties`.
    """
    for tool in tools or ():
        name, parameters = _name_and_parameters(tool)
        if name == tool_name:
            return (parameters or {}).get("properties", {})
    return {}


def get_json_schema_from_tools(tool_choice: Any, tools: Sequence[Tool] | None) -> dict[str, Any] | None:
    """What a forced call must match; None where nothing is forced.

    A named function: its own schema, so that the whole answer is its arguments. "required": a list of one call or
    more, each `{"name": ..., "parameters": ...}`. Raises ValueError for a name that is not in `tools`, and for two
    tools whose `$defs` disagree.

    Upstream: upstream/vllm/tool_parsers/utils.py:220 — `get_json_schema_from_tools`.
    """
    if tools is None:
        return None
    if isinstance(tool_choice, ChatCompletionNamedToolChoiceParam):
        wanted = tool_choice.function.name
        for tool in tools:
            name, parameters = _name_and_parameters(tool)
            if name == wanted:
                return parameters
        raise ValueError(f"Tool '{wanted}' has not been passed in `tools`.")
    return _list_of_calls(tools) if tool_choice == "required" else None


def _list_of_calls(tools: Sequence[Tool]) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    calls = []
    for tool in tools:
        name, parameters = _name_and_parameters(tool)
        parameters = copy.copy(parameters or NO_ARGUMENTS)
        for key, definition in parameters.pop("$defs", {}).items():
            if definitions.setdefault(key, definition) != definition:
                raise ValueError(f"Tool definition '{key}' has multiple schemas, which is not supported.")
        properties = {"name": {"type": "string", "enum": [name]}, "parameters": parameters}
        calls.append({"properties": properties, "required": ["name", "parameters"]})
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}
    return schema | ({"$defs": definitions} if definitions else {})


_TYPE_OF_PYTHON: tuple[tuple[Any, str], ...] = (
    (type(None), "null"),
    (bool, "boolean"),  # before int, which it is too
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def extract_types_from_schema(schema: Any) -> list[str]:
    """All types that a value may have: from `type`, from the values of `enum`, from alternatives; else ["string"].

    Upstream: upstream/vllm/tool_parsers/utils.py:453 — `extract_types_from_schema`.
    """
    if not isinstance(schema, dict):
        return ["string"]
    stated = schema.get("type")
    types = {stated} if isinstance(stated, str) else set()
    if isinstance(stated, list):
        types.update(each for each in stated if isinstance(each, str))
    for value in schema["enum"] if isinstance(schema.get("enum"), list) else ():
        types.add(next((name for kind, name in _TYPE_OF_PYTHON if isinstance(value, kind)), "string"))
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in schema[key] if isinstance(schema.get(key), list) else ():
            types.update(extract_types_from_schema(choice))
    return sorted(types) or ["string"]


_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("arr", "list", "sequence"), "array"),
    "bool": "boolean",
    "dict": "object",
}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def _null(value: str) -> None:
    if value.lower() != "null":
        raise ValueError
    return None


def _number(value: str) -> int | float:
    number = float(value)
    return number if number != int(number) else int(number)


_READERS: Mapping[str, Callable[[str], Any]] = {
    "null": _null,
    "integer": int,
    "number": _number,
    "boolean": lambda value: _BOOLEANS[value.lower().strip()],
    "object": json.loads,
    "array": json.loads,
    "string": str,
}
"""How a text becomes a value of each type, in the order in which the types are tried."""


def coerce_to_schema_type(value: str, schema_type: str | Sequence[str], none_is_null: bool = False) -> Any:
    """A value that the model wrote as bare text, as the first of the types that it can be; else as it stands.

    none_is_null: what Python writes for it is null too, where null is allowed and no text is.

    Upstream: upstream/vllm/tool_parsers/utils.py:526 — `coerce_to_schema_type`. An infinite "number" is an error
    there (OverflowError), as it is here.
    """
    stated = [schema_type] if isinstance(schema_type, str) else schema_type
    wanted = {_ALIASES.get(each.strip().lower(), each.strip().lower()) for each in stated}
    if none_is_null and value == "None" and "null" in wanted and "string" not in wanted:
        return None
    for name in [name for name in _READERS if name in wanted]:
        try:
            return _READERS[name](value)
        except (ValueError, TypeError, KeyError):
            continue
    try:
        return json.loads(value)
    except ValueError:
        return value
