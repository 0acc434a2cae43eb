"""From a conversation to the one text that a chat model was trained on.

A checkpoint brings its chat template, a jinja2 program, in `chat_template.jinja` or in tokenizer_config.json
(`chat_template.py` runs it, `chat_messages.py` reads the conversation). Upstream twins:
`vllm/entrypoints/chat_utils.py`, and `vllm/renderers/hf.py`, which calls transformers' `apply_chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_vllm.entrypoints.chat_messages import CONTENT_FORMATS, detect_content_format, parse_chat_messages
from mini_vllm.entrypoints.chat_template import ChatTemplateError, render
from mini_vllm.tokenizers.tokenizer_files import read_special_tokens
from mini_vllm.utils import random_uuid
from mini_vllm.utils.checks import shown
from mini_vllm.utils.json_files import load_json_object

Message = Mapping[str, Any]
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def apply_chat_template(
    folder_or_template: str | Path,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    *,
    chat_template: str | None = None,
    continue_final_message: bool = False,
    content_format: str = "auto",
    tracker: Any = None,
    **kwargs: Any,
) -> str:
    """Render `messages`, each `{"role": ..., "content": ...}`, into the prompt's text.

    Args:
        folder_or_template: a checkpoint folder, or the template itself.
        messages: a content is a text, or a list of parts as in OpenAI's API.
        add_generation_prompt: end with the words that start the assistant's answer.
        chat_template: a template, or a file with one, used in place of the folder's.
        continue_final_message: end inside the last message, so that its text is continued.
        content_format: "string": contents as texts; "openai": as lists of dicts; "auto": as the template reads them.
        tracker: takes pictures (`chat_media.py`); None: there may be none.
        kwargs: go to the template (`tools=`, `documents=`, `enable_thinking=`, ...), and win over the folder's special
            tokens.

    The text holds its special tokens already: encode it with `add_special_tokens=False`. Raises ChatTemplateError.
    """
    _check_switches(add_generation_prompt, continue_final_message, content_format, kwargs)
    variables: dict[str, Any] = {"tools": None, "documents": None}
    if is_folder(folder_or_template):
        folder = Path(folder_or_template)
        template = read_template(chat_template) or load_chat_template(folder, with_tools=bool(kwargs.get("tools")))
        if template is None:
            raise ChatTemplateError(
                f"{str(folder)!r} has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); pass one, or send a plain prompt."
            )
        variables.update(read_special_tokens(folder))
    else:
        template = read_template(chat_template) or str(folder_or_template)
    how = detect_content_format(template) if content_format == "auto" else content_format
    conversation = parse_chat_messages(messages, how, tracker)
    final = _mark_end(conversation[-1]) if continue_final_message else ""
    variables.update(kwargs, messages=conversation, add_generation_prompt=add_generation_prompt)
    text = render(template, variables)
    return _cut_at_mark(text, final) if continue_final_message else text


def is_folder(source: str | Path) -> bool:
    """True for a path to a checkpoint; a template contains braces or line breaks and is never one."""
    return isinstance(source, Path) or ("{" not in source and "\n" not in source)


def read_template(given: Any) -> str | None:
    """A template as it is, or the text of the file that is named; None for None.

    Upstream: upstream/vllm/entrypoints/chat_utils.py:1318 — `load_chat_template`.
    """
    if given is None or (isinstance(given, str) and not is_folder(given)):
        return given
    if not isinstance(given, str | Path):
        raise ChatTemplateError(f"chat_template must be a template or the path of one, got {shown(given)}.")
    try:
        return Path(given).read_text(encoding="utf-8") if str(given) else ""
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ChatTemplateError(f"chat_template {shown(str(given))} looks like a file, but: {error}.") from None


def load_chat_template(folder: str | Path, with_tools: bool = False) -> str | None:
    """The folder's template, or None. Of several named ones: `tool_use` where there are tools, else `default`."""
    folder = Path(folder)
    if (folder / "chat_template.jinja").is_file():
        return read_template(folder / "chat_template.jinja")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            continue
        found = load_json_object(folder / name, ChatTemplateError).get("chat_template")
        if isinstance(found, list):
            ok = all(isinstance(each, Mapping) and {"name", "template"} <= set(each) for each in found)
            named = {each["name"]: each["template"] for each in found} if ok else {}
            found = named.get("tool_use") if with_tools and "tool_use" in named else named.get("default")
        if found is not None and not isinstance(found, str):
            raise ChatTemplateError(f"{folder / name}: chat_template must be a text, got {shown(found)}.")
        if found is not None:
            return found
    return None


def make_tool_call_id(id_type: str = "random", func_name: str | None = None, idx: int | None = None) -> str:
    """A new id of a tool call; "kimi_k2": of that model's form.

    Upstream: upstream/vllm/entrypoints/chat_utils.py:1946 — `make_tool_call_id`.
    """
    return f"functions.{func_name}:{idx}" if id_type == "kimi_k2" else f"chatcmpl-tool-{random_uuid()}"


def _check_switches(add_prompt: Any, continue_final: Any, content_format: Any, kwargs: Mapping[str, Any]) -> None:
    for name, value in (("add_generation_prompt", add_prompt), ("continue_final_message", continue_final)):
        if not isinstance(value, bool):
            raise ChatTemplateError(f"{name} must be True or False, got {shown(value)}.")
    if add_prompt and continue_final:
        raise ChatTemplateError("continue_final_message=True needs add_generation_prompt=False: give one of them.")
    if content_format not in CONTENT_FORMATS:
        raise ChatTemplateError(
            f"chat_template_content_format must be one of {CONTENT_FORMATS}, got {shown(content_format)}."
        )
    tools = kwargs.get("tools")
    if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(t, Mapping) for t in tools)):
        raise ChatTemplateError(f"tools must be a list of dicts, as in OpenAI's API, got {shown(tools)}.")


def _mark_end(message: dict[str, Any]) -> str:
    """Put a mark behind the text of the last message; returns that text."""
    content = message["content"]
    if not content:
        raise ChatTemplateError("continue_final_message=True needs a last message with a text to continue.")
    if isinstance(content, str):
        message["content"] = content + _TAG
        return content
    text = content[-1]["text"]
    content[-1] = {**content[-1], "text": text + _TAG}
    return text


def _cut_at_mark(text: str, final: str) -> str:
    """What stands before the mark; where the template has trimmed the message, the text before it is trimmed too."""
    at = text.rfind(_TAG.strip())
    if at < 0 or final.strip() not in text:
        raise ChatTemplateError("continue_final_message=True: the template does not show the last message as it is.")
    return text[:at] if text.startswith(_TAG, at) else text[:at].rstrip()
