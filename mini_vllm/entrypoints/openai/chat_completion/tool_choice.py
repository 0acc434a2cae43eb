"""Which tools may be named how, in upstream's words.

Upstream has it in `upstream/vllm/entrypoints/openai/chat_completion/protocol.py:760` — `check_tool_usage`.
"""

from __future__ import annotations

from typing import Any

_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'


def check_tool_usage(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in "auto" where there are tools and no choice. Raises ValueError for a choice that cannot be kept."""
    if data.get("tools") == []:
        raise ValueError(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        )
    if "tool_choice" not in data and data.get("tools"):
        data["tool_choice"] = "auto"
    choice = data.get("tool_choice")
    if choice is None or choice == "none":
        return data
    if data.get("tools") is None:
        raise ValueError("When using `tool_choice`, `tools` must be set.")
    if not isinstance(choice, dict):
        if choice not in ("auto", "required"):
            raise ValueError(
                f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are '
                "supported."
            )
        return data
    name = _name_of(choice)
    if not any(_tool_name(tool) == name for tool in data["tools"]):
        raise ValueError("The tool specified in `tool_choice` does not match any of the specified `tools`")
    return data


def _name_of(choice: dict[str, Any]) -> str:
    function = choice.get("function")
    if not isinstance(function, dict):
        raise ValueError(f"Invalid value for `function`: `{function}` in `tool_choice`! {_USAGE}")
    if "name" not in function:
        raise ValueError(f"Expected field `name` in `function` in `tool_choice`! {_USAGE}")
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise ValueError(f"Invalid `name` in `function`: `{name}` in `tool_choice`! {_USAGE}")
    return name


def _tool_name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
