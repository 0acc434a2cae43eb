"""jinja2's sandbox, with an end to how much a template may make and how long it may run.

The sandbox keeps a template from the machine's files and from Python's insides. It does not keep it from `'x' *
10**10`, from a string that doubles in a loop, or from loops inside loops. Here every way to make a large string is
measured before it is made, and the rounds of all loops of one rendering are counted. Upstream has no twin: it trusts
templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

MAX_TEXT = 1 << 22
"""Characters that a template may make, in a string or in all: no context holds more."""
MAX_ROUNDS = 1 << 20
"""Rounds of all loops of one rendering."""
BUDGET = "_mini_vllm_rounds_left"
"""The variable that counts them down, a list of one number."""
_WIDTH_FIRST = ("center", "indent", "batch", "slice", "wordwrap")


class TemplateTooLarge(Exception):
    """A template asked for more than it may have."""


@lru_cache(maxsize=1)
def bounded_environment() -> type:
    """The class of the environment; jinja2 is imported here, as the engine's import needs numpy alone."""
    from jinja2 import pass_context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class BoundedEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.globals.pop("lipsum", None)
            for name in _WIDTH_FIRST:
                self.filters[name] = _bounded(self.filters[name])
            self.filters["format"] = lambda form, *args, **kwargs: _formatted(str(form), args, kwargs)
            self.filters["replace"] = lambda text, *args: _replaced(str(text), *args)
            self.filters["join"] = _joined
            self.filters["_counted"] = pass_context(_counted)

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            return _watched(super()._parse(source, name, filename))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _measure(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            owner = getattr(function, "__self__", None)
            if isinstance(owner, str | bytes):
                name = getattr(function, "__name__", "")
                if name in ("replace", "join", "translate", "expandtabs"):
                    bound(len(owner) * max([8, *(_size(each) for each in args)]))
                bound(max((each for each in (*args, *kwargs.values()) if isinstance(each, int)), default=0))
            return super().call(context, function, *args, **kwargs)

        def wrap_str_format(self, value: Any) -> Any:
            wrapped = super().wrap_str_format(value)
            if wrapped is None:
                return None

            def formatted(*args: Any, **kwargs: Any) -> Any:
                _measure_form(value.__self__, (args, *args, *kwargs.values()))
                return wrapped(*args, **kwargs)

            return formatted

    return BoundedEnvironment


def bound(size: int) -> None:
    """Raises TemplateTooLarge for more than `MAX_TEXT` characters."""
    if size > MAX_TEXT:
        raise TemplateTooLarge(f"it makes a text of more than {MAX_TEXT} characters")


def _size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 0


def _measure(operator: str, left: Any, right: Any) -> None:
    """Bound what an operator makes, before it does."""
    sized = str | bytes | list | tuple
    if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
        bound(len(left) + len(right))
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, sized) and isinstance(times, int):
                bound(len(many) * times)
        if isinstance(left, int) and isinstance(right, int):
            bound(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        bound(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        _measure_form(left, right if isinstance(right, tuple) else (right,))


def _measure_form(form: str, values: Iterable[Any]) -> None:
    """Bound the widths of a format string, those among its values included."""
    widths = [int(width) for width in re.findall(r"\d{1,18}", form)]
    if "*" in form or "{" in form:
        widths += [value for value in values if isinstance(value, int)]
    bound(max(widths, default=0))


def _formatted(form: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    _measure_form(form, args)
    return form % (kwargs or args)


def _replaced(text: str, old: Any, new: Any, count: int | None = None) -> str:
    bound(len(text) * max(1, len(str(new))) if len(str(new)) > len(str(old)) else len(text))
    return text.replace(str(old), str(new), -1 if count is None else count)


def _joined(value: Any, glue: Any = "", attribute: Any = None) -> str:
    """As jinja2's `join`, of texts that are measured as they come."""
    pieces, size = [], 0
    for item in value:
        for key in str(attribute).split(".") if attribute is not None else ():
            item = item[key]
        pieces.append(str(item))
        size += len(pieces[-1]) + len(str(glue))
        bound(size)
    return str(glue).join(pieces)


def _bounded(function: Any) -> Any:
    """A filter whose first argument is a width or a count, wherever it stands."""

    def filtered(value: Any, *args: Any, **kwargs: Any) -> Any:
        bound(max((each for each in (*args, *kwargs.values()) if isinstance(each, int)), default=0))
        return function(value, *args, **kwargs)

    if hasattr(function, "jinja_pass_arg"):
        filtered.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return filtered


def _counted(context: Any, items: Any) -> Iterator[Any]:
    """The items of a loop, each of which takes one from the budget."""
    left = context.get(BUDGET) or [MAX_ROUNDS]
    for item in items:
        left[0] -= 1
        if left[0] < 0:
            raise TemplateTooLarge(f"its loops take more than {MAX_ROUNDS} rounds")
        yield item


def _watched(tree: Any) -> Any:
    """The template's tree with a count around what each loop goes through, and `a ~ b` as a joined list."""
    from jinja2 import nodes

    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None, lineno=loop.lineno)
    for node in list(tree.find_all(nodes.Concat)):
        listed = nodes.List(list(node.nodes), lineno=node.lineno)
        node.nodes = [nodes.Filter(listed, "join", [], [], None, None, lineno=node.lineno)]
    return tree
