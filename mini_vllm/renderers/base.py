"""From a request's prompt or conversation to token ids, beside the event loop. Upstream twin:
`vllm/renderers/base.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from mini_vllm.engine.multimodal_inputs import MultiModalInputs
from mini_vllm.entrypoints.chat_media import MultiModalItemTracker
from mini_vllm.entrypoints.chat_messages import detect_content_format, parse_chat_messages
from mini_vllm.entrypoints.chat_utils import apply_chat_template, load_chat_template, read_template
from mini_vllm.renderers.params import ChatParams, TokenizeParams
from mini_vllm.utils.async_utils import in_turns

INLINE_CHARS = 2048
"""Shorter texts are tokenized where they are: a thread would cost more than it spares the event loop."""
_NOT_VARIABLES = ("chat_template", "tokenize", "return_dict", "continue_final_message", "add_generation_prompt")


class BaseRenderer:
    """Renders and tokenizes for one model.

    Args:
        tokenizer: or None, where prompts have to be token ids. folder: the checkpoint, for its template; or None.
        multimodal: the door for media; None: the model takes text alone. name: of the model, for that refusal.

    Upstream: upstream/vllm/renderers/base.py:74 — `BaseRenderer`; a subclass per kind of tokenizer there.
    """

    def __init__(
        self, tokenizer: Any, folder: str | None, multimodal: MultiModalInputs | None = None, name: str = "this model"
    ) -> None:
        self.tokenizer, self.multimodal, self.name = tokenizer, multimodal, name
        self.folder = folder
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="renderer")

    def get_tokenizer(self) -> Any:
        """The tokenizer. Raises ValueError where there is none."""
        if self.tokenizer is None:
            raise ValueError("Tokenizer not available when `skip_tokenizer_init=True`")
        return self.tokenizer

    @cached_property
    def max_chars_per_token(self) -> int | None:
        """Of the longest token; None where it is not known: only a byte-level tokenizer's tokens have fixed bytes."""
        tokenizer = self.tokenizer
        if not getattr(tokenizer, "is_byte_level", False):
            return None
        return max(len(tokenizer.id_to_bytes(i)) for i in range(tokenizer.vocab_size))

    async def _beside(self, size: int, function: Callable[..., Any], *args: Any) -> Any:
        """Call it here, or in the renderer's thread where the text is long."""
        if size < INLINE_CHARS:
            return function(*args)
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    async def render_cmpl_async(
        self, prompts: Sequence[Any], tok_params: TokenizeParams, extras: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Prompts, each a text or token ids, as prompts for the engine.

        Raises:
            VLLMValidationError: one is too long. ValueError: a text, and there is no tokenizer.

        Upstream: upstream/vllm/renderers/base.py:935 — `BaseRenderer.render_cmpl_async`.
        """
        return [await self._engine_prompt(prompt, tok_params, extras) async for prompt in in_turns(prompts)]

    async def _engine_prompt(self, prompt: Any, params: TokenizeParams, extras: Mapping[str, Any] | None) -> Any:
        text: str | None = None
        if isinstance(prompt, str):
            text = prompt
            params.check_text(text, self.max_chars_per_token)
            ids = await self._beside(len(text), self._encode, text, params.add_special_tokens)
            ids = params.cut_as_tokenizer(ids, len(self._encode("", True)) if params.add_special_tokens else 0)
        else:
            ids = list(prompt)
            if params.needs_detokenization:
                text = self.get_tokenizer().decode(ids, skip_special_tokens=False)
        if not ids or not (ids := params.apply(ids)):
            raise ValueError("The decoder prompt cannot be empty")
        found: dict[str, Any] = {"prompt_token_ids": ids, **(extras or {})}
        if text:
            found["prompt"] = text
        return found

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        tokenizer = self.get_tokenizer()
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"prompt has half of a surrogate pair at character {error.start}: no UTF-8") from None
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))

    async def render_chat_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat_params: ChatParams,
        tok_params: TokenizeParams,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The conversation as the template saw it, and the prompt for the engine.

        Raises:
            ChatTemplateError: the template is missing or refuses the conversation. VLLMValidationError: too long.

        Upstream: upstream/vllm/renderers/base.py:998 — `BaseRenderer.render_chat_async`.
        """
        size = sum(len(str(message.get("content"))) for message in messages)
        if self.multimodal is not None:  # a short URL may name a large picture
            size = INLINE_CHARS
        conversation, text, media = await self._beside(size, self._render_messages, messages, chat_params)
        prompt = await self._engine_prompt(text, tok_params, extras)
        if media:  # pictures are resized beside the event loop, whatever their size
            prompt = await self._beside(INLINE_CHARS, self._process_multimodal, prompt, media)
        return conversation, prompt

    def _process_multimodal(self, prompt: dict[str, Any], media: Mapping[str, Any]) -> dict[str, Any]:
        """The prompt with its items ready.

        Upstream: upstream/vllm/renderers/base.py:666 — `BaseRenderer._process_multimodal`.
        """
        assert self.multimodal is not None
        ids, features = self.multimodal.process(media, prompt["prompt_token_ids"])
        return {**prompt, "prompt_token_ids": ids, "mm_features": features}

    def _render_messages(
        self, messages: Sequence[Mapping[str, Any]], params: ChatParams
    ) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
        variables = dict(params.chat_template_kwargs)
        given = {name: variables.pop(name) for name in _NOT_VARIABLES if name in variables}
        content_format = params.chat_template_content_format
        template = params.chat_template
        source = self.folder if self.folder is not None else read_template(template)
        if source is None:
            raise ValueError(NO_TEMPLATE)
        if template is None and load_chat_template(source) is None:
            raise ValueError(NO_TEMPLATE)
        settings = params.media_io_kwargs, params.mm_processor_kwargs
        tracker = MultiModalItemTracker(self.multimodal, self.name, *settings, prepares=True)
        text = apply_chat_template(
            source,
            list(messages),
            given.get("add_generation_prompt", True),
            chat_template=template,
            continue_final_message=given.get("continue_final_message", False),
            content_format=content_format,
            tracker=tracker,
            **variables,
        )
        if content_format == "auto":
            content_format = detect_content_format(read_template(template) or load_chat_template(source) or "")
        counted = MultiModalItemTracker(self.multimodal, self.name, is_dry=True)
        media = tracker.extras()
        if media and params.mm_processor_kwargs:
            media["mm_processor_kwargs"] = params.mm_processor_kwargs
        return parse_chat_messages(list(messages), content_format, counted), text, media


NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)
"""Upstream's words: upstream/vllm/renderers/hf.py:652 — "As of transformers v4.44"."""
