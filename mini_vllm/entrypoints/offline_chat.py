"""What `LLM` does with conversations. Upstream: `vllm/entrypoints/llm.py` and `vllm/entrypoints/offline_utils.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.engine.input_processor import Prompt
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.checks import require

Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None
Bar = Any


class OfflineChatMixin:
    """Conversations in, through the chat template, and on to `generate`."""

    llm_engine: Any
    chat_template: Any
    generate: Any
    enqueue: Any

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Continue one conversation (a list of `{"role", "content"}`) or many, by the checkpoint's chat template.

        Args:
            messages: a content is a text or a list of parts, as in OpenAI's API; a picture is
                `{"type": "image_url", "image_url": {"url": "data:…"}}` or `{"type": "image_pil", "image_pil": …}`,
                a film `{"type": "video_url", "video_url": {"url": "data:…"}}`.
            chat_template_content_format, add_generation_prompt, continue_final_message: see `apply_chat_template`.
            tools: given to the template, in the form of OpenAI's API; parsing the calls is the caller's business.
            chat_template_kwargs: further variables of the template.
            tokenization_kwargs: {"add_special_tokens": True} where the template does not write them.

        Upstream: upstream/vllm/entrypoints/llm.py:615 — `LLM.chat`.
        """
        prompts = self._render_all(
            messages, add_generation_prompt, chat_template, tools, chat_template_content_format,
            continue_final_message, chat_template_kwargs, tokenization_kwargs,
        )  # fmt: skip
        later = {"lora_request": lora_request, "mm_processor_kwargs": mm_processor_kwargs}
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, **later)

    def enqueue_chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """As `chat`, but only queue.

        Upstream: upstream/vllm/entrypoints/llm.py:709 — `LLM.enqueue_chat`.
        """
        prompts = self._render_all(
            messages, add_generation_prompt, chat_template, tools, chat_template_content_format,
            continue_final_message, chat_template_kwargs, tokenization_kwargs,
        )  # fmt: skip
        later = {"mm_processor_kwargs": mm_processor_kwargs}
        return self.enqueue(prompts, sampling_params, lora_request, priority, use_tqdm, **later)

    def _render_all(
        self, messages: Any, add_generation_prompt: bool, chat_template: str | None, tools: Any,
        chat_template_content_format: str, continue_final_message: bool, chat_template_kwargs: Any,
        tokenization_kwargs: Any,
    ) -> list[Prompt]:  # fmt: skip
        """The prompt of each conversation: `chat` and `enqueue_chat` differ only in what they do with them."""
        given: dict[str, Any] = {
            "chat_template_content_format": chat_template_content_format,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": chat_template_kwargs,
            "tokenization_kwargs": tokenization_kwargs,
        }
        many = [messages] if not _is_many(messages) else list(messages)
        return [self.render_chat(each, add_generation_prompt, chat_template, tools, **given) for each in many]

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        tools: list[dict[str, Any]] | None = None,
        *,
        chat_template_content_format: str = "auto",
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The conversation as a prompt of token ids; special tokens come from the template, none are added.

        The release adds them for a model that takes media, here and not in its server, so that the prompt begins with
        two: upstream/vllm/renderers/base.py:345 — `default_chat_tok_params`.
        """
        from mini_vllm.entrypoints.chat_media import MultiModalItemTracker
        from mini_vllm.entrypoints.chat_utils import apply_chat_template

        template = chat_template if chat_template is not None else self.chat_template
        engine = self.llm_engine
        if engine.tokenizer is None or (engine.folder is None and template is None):
            raise ValueError("chat needs a checkpoint with a tokenizer, and a chat template there or as chat_template=")
        extra = chat_template_kwargs or {}
        require(isinstance(extra, Mapping), "chat_template_kwargs", extra, "a dict of variables for the template")
        tracker = MultiModalItemTracker(engine.input_processor.multimodal, str(engine.folder))
        text = apply_chat_template(
            engine.folder if engine.folder is not None else template,
            messages,
            add_generation_prompt,
            chat_template=template,
            continue_final_message=continue_final_message,
            content_format=chat_template_content_format,
            tracker=tracker,
            **{"tools": tools, **extra},
        )
        how = {"add_special_tokens": False, **checked_tokenization(tokenization_kwargs)}
        ids = engine.tokenizer.encode(text, **how)
        return {"prompt": text, "prompt_token_ids": ids, **tracker.extras()}


def checked_tokenization(given: Any) -> Mapping[str, Any]:
    """`tokenization_kwargs`, {} for None. Raises ValueError for any but the one of transformers' arguments that counts
    here."""
    given = {} if given is None else given
    ok = isinstance(given, Mapping) and all(k == "add_special_tokens" and isinstance(v, bool) for k, v in given.items())
    require(ok, "tokenization_kwargs", given, "a dict with 'add_special_tokens' at most")
    return given


def _is_many(messages: Any) -> bool:
    """True for a list of conversations."""
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str | bytes)
    return is_list and len(messages) > 0 and not isinstance(messages[0], Mapping)
