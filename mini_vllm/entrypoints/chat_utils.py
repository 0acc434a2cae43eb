"""From a conversation to the one text that a chat model was trained on.

A checkpoint brings its chat template, a jinja2 program, in `chat_template.jinja` or in tokenizer_config.json. It is
code from a download, so it runs in jinja2's sandbox. Upstream twins: `vllm/entrypoints/chat_utils.py`, and
upstream/vllm/renderers/hf.py, which calls transformers' `apply_chat_template`; the environment here has the same
settings, filters and functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from mini_vllm.tokenizers.tokenizer_files import read_special_tokens
from mini_vllm.utils.json_files import load_json_object

Message = Mapping[str, Any]


class ChatTemplateError(ValueError):
    """The template is missing or damaged, or it refused the conversation."""


def apply_chat_template(
    folder_or_template: str | Path,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    *,
    chat_template: str | None = None,
    **kwargs: Any,
) -> str:
    """Render `messages`, each `{"role": ..., "content": ...}`, into the prompt's text.

    folder_or_template: a checkpoint folder, or the template itself. add_generation_prompt: end with the words that
    start the assistant's answer. chat_template: used in place of the folder's. kwargs go to the template (`tools=`,
    `documents=`, `enable_thinking=`, ...), and win over the folder's special tokens. The text holds its special tokens
    already: encode it with `add_special_tokens=False`. Raises ChatTemplateError.
    """
    _check_messages(messages)
    variables: dict[str, Any] = {"tools": None, "documents": None}
    if is_folder(folder_or_template):
        folder = Path(folder_or_template)
        template = chat_template or load_chat_template(folder, with_tools=bool(kwargs.get("tools")))
        if template is None:
            raise ChatTemplateError(
                f"{str(folder)!r} has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); pass one, or send a plain prompt."
            )
        variables.update(read_special_tokens(folder))
    else:
        template = chat_template or str(folder_or_template)
    variables.update(kwargs, messages=[dict(message) for message in messages])
    return _render(template, {**variables, "add_generation_prompt": add_generation_prompt})


def is_folder(source: str | Path) -> bool:
    """True for a path to a checkpoint; a template contains braces or line breaks and is never one."""
    return isinstance(source, Path) or ("{" not in source and "\n" not in source)


def load_chat_template(folder: str | Path, with_tools: bool = False) -> str | None:
    """The folder's template, or None. Of several named ones: `tool_use` where there are tools, else `default`."""
    folder = Path(folder)
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            continue
        found = load_json_object(folder / name, ChatTemplateError).get("chat_template")
        if isinstance(found, list):
            named = {entry["name"]: entry["template"] for entry in found}
            found = named.get("tool_use") if with_tools and "tool_use" in named else named.get("default")
        if found is not None:
            return found
    return None


def _check_messages(messages: Any) -> None:
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise ChatTemplateError(f"messages must be a list of at least one {{'role', 'content'}}, got {messages!r}.")
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(f"messages[{at}] must be a dict with 'role' and 'content', got {message!r}.")


def _render(template: str, variables: dict[str, Any]) -> str:
    import jinja2

    try:
        return _compile(template).render(**variables)
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(f"chat template, line {error.lineno}: {error.message}") from None
    except jinja2.TemplateError as error:  # undefined names, the sandbox, raise_exception
        raise ChatTemplateError(f"chat template: {error.message}") from None


@lru_cache(maxsize=16)
def _compile(template: str) -> Any:
    """The compiled template. Settings as in transformers' `_compile_jinja_template`."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_extension(), loopcontrols]
    )
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
