"""Calls in Python's syntax, read by Python's own grammar and never run.

Streaming needs a text that ends too early to become one that Python reads: `make_valid_python` closes what is open, or
says that it is too early to guess.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from mini_vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaToolCall, FunctionCall, ToolCall
from mini_vllm.tool_parsers.utils import dumps

_JSON_NAMES = {"null": None, "true": True, "false": False}
"""What models write in the place of Python's own."""
_CLOSING = {"[": "]", "(": ")", "{": "}", "'": "'", '"': '"'}
_OPENING = {"]": "[", ")": "(", "}": "{"}
_NAMES = {"]": "square brackets", ")": "parentheses", "}": "curly braces"}


class UnexpectedAstError(Exception):
    """Python, but no list of calls with plain values."""


def get_parameter_value(node: ast.expr) -> Any:
    """The value of a literal, a number with its sign among them; tuples and names are none.

    Raises UnexpectedAstError. Upstream refuses signs too, and all calls of the answer with them.

    Upstream: upstream/vllm/tool_parsers/utils.py:276 — `get_parameter_value`.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = get_parameter_value(node.operand)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.Dict):
        if not all(isinstance(key, ast.Constant) for key in node.keys):
            raise UnexpectedAstError("Dict tool call arguments must have literal keys")
        pairs = zip(node.keys, node.values, strict=True)
        return {key.value: get_parameter_value(value) for key, value in pairs if isinstance(key, ast.Constant)}
    if isinstance(node, ast.List):
        return [get_parameter_value(element) for element in node.elts]
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    raise UnexpectedAstError("Tool call arguments must be literals")


def handle_single_tool(call: ast.Call) -> ToolCall:
    """`a.b(x=1)` as a call of "a.b". What has no name (positional arguments) is dropped. Raises UnexpectedAstError.

    Upstream: upstream/vllm/tool_parsers/utils.py:330 — `handle_single_tool`.
    """
    parts, target = [], call.func
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    if not isinstance(target, ast.Name):
        raise UnexpectedAstError("Invalid tool call name")
    name = ".".join(reversed([*parts, target.id]))
    arguments = {keyword.arg: get_parameter_value(keyword.value) for keyword in call.keywords}
    return ToolCall(function=FunctionCall(name=name, arguments=dumps(arguments)))


def parse_calls(text: str) -> list[ToolCall]:
    """The calls of `[f(x=1), g()]`. Raises SyntaxError, UnexpectedAstError."""
    listed = getattr(ast.parse(text).body[0], "value", None)
    if not isinstance(listed, ast.List):
        raise UnexpectedAstError("Tool output must be a list of function calls")
    calls = [element for element in listed.elts if isinstance(element, ast.Call)]
    if len(calls) < len(listed.elts):
        raise UnexpectedAstError("Tool output must be a list of function calls")
    return [handle_single_tool(call) for call in calls]


def open_marks(text: str) -> list[str]:
    """Brackets and quotes that nothing has closed; those inside of a string are letters of it.

    Raises UnexpectedAstError for one that closes another's. Upstream counts brackets of strings too, and takes a quote
    behind two backslashes for one of the string.
    """
    stack: list[str] = []
    escaped = False
    for char in text:
        if stack and stack[-1] in "'\"":
            if char == stack[-1] and not escaped:
                stack.pop()
            escaped = char == "\\" and not escaped
        elif char in "[({'\"":
            stack.append(char)
        elif char in _OPENING and (not stack or stack.pop() != _OPENING[char]):
            raise UnexpectedAstError(f"Mismatched {_NAMES[char]}")
    return stack


_ESCAPE_BEGINS = re.compile(r"(?<!\\)(\\\\)*\\([xuU][0-9a-fA-F]*|N(\{[^}]*)?|[0-7]{1,2})?$")


def may_go_on(text: str, stack: list[str]) -> bool:
    """The text stops in a number or a name, whose next letter changes all of it (1, 1e5), or in a string's escape."""
    if not stack or stack[-1] not in "'\"":
        return bool(re.search(r"[\w.+-]$", text))
    found = _ESCAPE_BEGINS.search(text)
    whole = {"x": 2, "u": 4, "U": 8}
    return found is not None and not (found[2] and len(found[2]) - 1 >= whole.get(found[2][0], 99))


def _too_early(text: str, stack: list[str]) -> bool:
    """The text stops in a name, in a key, or before a value."""
    if text.endswith(("=", ":")):
        return True
    innermost = stack[-1] if stack else ""
    for bracket, mark in (("{", ":"), ("(", "=")):
        if innermost == bracket:
            outside = text[: text.rfind(bracket)]
            return outside.count(mark) <= outside.count(",")
    return False


def make_valid_python(
    text: str, marks: Callable[[str], list[str]] = open_marks, waits: Callable[[str, list[str]], bool] = may_go_on
) -> tuple[str, str] | None:
    """(the text with its brackets and quotes closed, what closes them), or None where it is too early.

    The counts look at the text *outside* the innermost bracket, as upstream's do, so that they say "too early" now
    and then where it is not; the next step asks again.

    Raises UnexpectedAstError for brackets that do not match.
    Upstream: upstream/vllm/tool_parsers/utils.py:360 — `make_valid_python`.
    """
    stack = marks(text)
    if waits(text, stack):
        return None
    text = text.rstrip()
    if _too_early(text, stack):
        return None
    text = text.removesuffix(",")
    if stack and stack[-1] == "[" and not text.endswith(("[", ")")):
        return None
    added = "".join(_CLOSING[mark] for mark in reversed(stack))
    try:
        module = ast.parse(text + added)
    except SyntaxError:
        return None
    if not module.body or any(isinstance(node, ast.Set) for node in ast.walk(module)):
        return None  # {"key"} is a set, and the start of a dict
    return text + added, added


def compute_tool_delta(sent: str, call: ToolCall, index: int, withheld_suffix: str) -> DeltaToolCall | None:
    """What of a call's arguments is new; `withheld_suffix`, which only closes the cut text, stays behind.

    Raises ValueError where the arguments do not end with it.
    Upstream: upstream/vllm/tool_parsers/utils.py:596 — `compute_tool_delta`.
    """
    arguments = call.function.arguments
    if not arguments.endswith(withheld_suffix):
        raise ValueError(f"Tool call arguments '{arguments}' do not end with expected suffix '{withheld_suffix}'")
    arguments = arguments[: len(arguments) - len(withheld_suffix)]
    if not sent:
        function = DeltaFunctionCall(name=call.function.name, arguments=arguments)
        return DeltaToolCall(id=call.id, type="function", index=index, function=function)
    new = arguments[len(sent) :]
    return DeltaToolCall(id=None, index=index, function=DeltaFunctionCall(arguments=new)) if new else None
