"""A chat template is a program from a download. This is what it may do, and how much.

Upstream has transformers compile it (`vllm/renderers/hf.py`), in jinja2's sandbox. The environment here has the same
settings, filters and functions. The sandbox keeps a template from the machine's files; it does not keep it from asking
for all its memory, so sizes are bounded here.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache
from typing import Any

MAX_TEXT = 1 << 24
"""Characters that a template may make, in a string or in all."""


class ChatTemplateError(ValueError):
    """The template is missing or damaged, or it refused the conversation."""


def render(template: str, variables: dict[str, Any]) -> str:
    """The text that the template makes of these variables. Raises ChatTemplateError, whatever goes wrong in it."""
    import jinja2

    try:
        pieces, size = [], 0
        for piece in compiled(template).generate(**variables):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_TEXT:
                raise ChatTemplateError(f"chat template: the text has more than {MAX_TEXT} characters.")
        return "".join(pieces)
    except ChatTemplateError:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(f"chat template, line {error.lineno}: {error.message}") from None
    except jinja2.TemplateError as error:  # undefined names, the sandbox, raise_exception
        raise ChatTemplateError(f"chat template: {error.message}") from None
    except RecursionError:
        raise ChatTemplateError("chat template: it calls itself without end.") from None
    except MemoryError:
        raise ChatTemplateError("chat template: it asks for more memory than there is.") from None
    except Exception as error:  # whatever its code raises: a wrong type, an index, a number too large
        raise ChatTemplateError(f"chat template: {type(error).__name__}: {error}") from None


@lru_cache(maxsize=16)
def compiled(template: str) -> Any:
    """The compiled template. Settings as in transformers' `_compile_jinja_template`."""
    from jinja2.ext import loopcontrols

    options = {"trim_blocks": True, "lstrip_blocks": True, "extensions": [_generation_extension(), loopcontrols]}
    environment = _bounded_environment()(**options)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _bounded_environment() -> type:
    """jinja2's immutable sandbox, in which a string cannot be multiplied or padded beyond `MAX_TEXT`."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class BoundedEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "*":
                for text, times in ((left, right), (right, left)):
                    if isinstance(text, str | bytes | list | tuple) and isinstance(times, int):
                        _bound(len(text) * times)
            elif operator == "**" and isinstance(left, int) and isinstance(right, int):
                _bound(left.bit_length() * right)
            elif operator == "%" and isinstance(left, str):
                _bound(max((int(part) for part in _numbers(left)), default=0))
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(getattr(function, "__self__", None), str | bytes):
                _bound(max((each for each in args if isinstance(each, int)), default=0))
            return super().call(context, function, *args, **kwargs)

    def bounded(function: Any) -> Any:
        def filtered(value: Any, width: Any = 0, *args: Any, **kwargs: Any) -> Any:
            _bound(width if isinstance(width, int) else 0)
            return function(value, width, *args, **kwargs) if width else function(value, *args, **kwargs)

        return filtered

    class Environment(BoundedEnvironment):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.globals["range"] = _range
            for name in ("center", "indent"):
                self.filters[name] = bounded(self.filters[name])

    return Environment


def _range(*args: int) -> range:
    """`range`, of at most 100,000 numbers as in the sandbox."""
    asked = range(*args)
    try:
        length = len(asked)
    except OverflowError:
        length = 1 << 62
    if length > 100_000:
        raise OverflowError("range is too large for a chat template: at most 100,000 numbers")
    return asked


def _bound(size: int) -> None:
    if size > MAX_TEXT:
        raise ChatTemplateError(f"chat template: it makes a text of more than {MAX_TEXT} characters.")


def _numbers(form: str) -> list[str]:
    """The widths in a format string."""
    return re.findall(r"\d{1,18}", form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own `tojson` would escape HTML characters, which no model saw in training."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _generation_extension() -> type:
    """`{% generation %}` marks the assistant's words for training; here its body is simply rendered."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return GenerationTag
