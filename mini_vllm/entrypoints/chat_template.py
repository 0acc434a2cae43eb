"""A chat template is a program from a download. This is what it may do, and how much.

Upstream has transformers compile it (`vllm/renderers/hf.py`), in jinja2's sandbox. The environment here has the same
settings, filters and functions; `chat_sandbox.py` bounds what jinja2's sandbox does not: memory and time.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from mini_vllm.entrypoints.chat_sandbox import (
    BUDGET,
    MAX_ROUNDS,
    MAX_TEXT,
    TemplateTooLarge,
    bound,
    bounded_environment,
)


class ChatTemplateError(ValueError):
    """The template is missing or damaged, or it refused the conversation."""


def render(template: str, variables: dict[str, Any]) -> str:
    """The text that the template makes of these variables. Raises ChatTemplateError, whatever goes wrong in it."""
    import jinja2

    try:
        pieces, size = [], 0
        for piece in compiled(template).generate(**variables, **{BUDGET: [MAX_ROUNDS]}):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_TEXT:
                raise TemplateTooLarge(f"the text has more than {MAX_TEXT} characters")
        return "".join(pieces)
    except TemplateTooLarge as error:
        raise ChatTemplateError(f"chat template: {error}.") from None
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
    environment = bounded_environment()(**options)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own `tojson` would escape HTML characters, which no model saw in training."""
    bound(indent if isinstance(indent, int) else 0)
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
