"""`LLM`: the offline front door. All prompts in, all results out. Upstream twin: `vllm/entrypoints/llm.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.engine.arg_refusals import missing_method
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.input_processor import Prompt
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.entrypoints.offline_utils import Bar, OfflineInferenceMixin
from mini_vllm.metrics.reader import Metric
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.checks import require

Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM(OfflineInferenceMixin):
    """A model ready to continue prompts.

    Args:
        model: a checkpoint folder, a hub name (extra `hub`), or a model object; None for the toy model.
        tokenizer: a folder, a hub name, or an object; by default the checkpoint's own.
        chat_template: a template, or a file with one, in place of the checkpoint's.
        with_labs: labs whose code takes the place of ours, "all" or ["02-01", …]: see `mini_vllm.engine.parts`.
        engine_args: `block_size`, `num_blocks`, `max_num_seqs`, `max_num_batched_tokens`, `attention_backend`,
            `cudagraph_mode`, … (see `EngineArgs`); None means the default.

    Methods of upstream that later phases bring raise an AttributeError that names the phase.

    >>> from mini_vllm import LLM, SamplingParams
    >>> llm = LLM(num_blocks=64)  # the toy model
    >>> [output] = llm.generate(["hi"], SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)
    >>> len(output.outputs[0].token_ids), output.outputs[0].finish_reason
    (4, 'length')

    Upstream: upstream/vllm/entrypoints/llm.py:66 — `LLM`.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        tokenizer: Any = None,
        chat_template: Any = None,
        with_labs: Any = None,
        **engine_args: Any,
    ) -> None:
        self.llm_engine = LLMEngine(model, tokenizer=tokenizer, with_labs=with_labs, **engine_args)
        self.model_config = self.llm_engine.config.model_config
        self.chat_template = chat_template
        self._request_counter = itertools.count()
        self._enqueued: list[str] = []
        self._done: dict[str, RequestOutput] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Upstream: upstream/vllm/entrypoints/llm.py:387 — `LLM.from_engine_args`."""
        return cls(**engine_args.as_kwargs())

    def __getattr__(self, name: str) -> Any:
        raise missing_method(self, name)

    def get_tokenizer(self) -> Any:
        """The tokenizer in use, or None."""
        return self.llm_engine.tokenizer

    def get_world_size(self, include_dp: bool = True) -> int:
        """How many processes share the model (upstream/vllm/entrypoints/llm.py:394 — `LLM.get_world_size`)."""
        return self.llm_engine.config.tensor_parallel_size

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """Call `func` with the model of this process (upstream/vllm/entrypoints/llm.py:602 — `LLM.apply_model`)."""
        return [func(self.llm_engine.model)]

    def get_metrics(self) -> list[Metric]:
        """What the engine has counted (upstream/vllm/entrypoints/llm.py:846 — `LLM.get_metrics`)."""
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """See `LLMEngine.reset_prefix_cache` (upstream/vllm/entrypoints/llm.py:799 — `LLM.reset_prefix_cache`)."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def get_default_sampling_params(self) -> SamplingParams:
        """Parameters used where none are given: the settings of `generation_config` over ours.

        Upstream: upstream/vllm/entrypoints/llm.py:415 — `LLM.get_default_sampling_params`.
        """
        engine = self.llm_engine
        return SamplingParams.from_optional(**self.model_config.get_diff_sampling_param(engine.model, engine.folder))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: Bar = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt; results in the order of the prompts.

        Args:
            prompts: one or many; each a string, a list of token ids, or `{"prompt_token_ids": [...]}` /
                `{"prompt": "..."}` (`TokensPrompt`, `TextPrompt`).
            sampling_params: one for all, or one for each prompt; None: the checkpoint's defaults.
            use_tqdm: show a progress bar on a terminal when there is more than one prompt (upstream's name); or what
                makes one, as tqdm does.
            priority: one number for each prompt, lower first (policy "priority"; no effect under another, as upstream).
            tokenization_kwargs: {"add_special_tokens": False} for texts that hold their special tokens already.
            lora_request, mm_processor_kwargs: None until phases 11 and 13.

        Raises:
            ValueError, TypeError: what is wrong with which prompt. All prompts are looked at before any is queued.

        Upstream: upstream/vllm/entrypoints/llm.py:422 — `LLM.generate`.
        """
        _refuse_later(lora_request, mm_processor_kwargs)
        ids = self._add_requests(self._process(prompts, sampling_params, tokenization_kwargs), priority)
        return self._run_engine(ids, use_tqdm)

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
        use_tqdm: Bar = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[str]:
        """As `generate`, but only queue the prompts, and return the ids of their requests.

        Upstream: upstream/vllm/entrypoints/llm.py:487 — `LLM.enqueue`.
        """
        _refuse_later(lora_request, mm_processor_kwargs)
        ids = self._add_requests(self._process(prompts, sampling_params, tokenization_kwargs), priority)
        self._enqueued += ids
        return ids

    def wait_for_completion(self, output_type: Any = None, *, use_tqdm: Bar = True) -> list[RequestOutput]:
        """Run what `enqueue` has queued; results in the order in which it was queued, [] where nothing was.

        output_type: None or `RequestOutput`, the one kind of output so far.
        Upstream: upstream/vllm/entrypoints/llm.py:547 — `LLM.wait_for_completion`.
        """
        ok = output_type in (None, RequestOutput, (RequestOutput,))
        require(ok, "output_type", output_type, "None or RequestOutput: phase 14 brings pooling")
        ids, self._enqueued = self._enqueued, []
        return self._run_engine(ids, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Continue one conversation (a list of `{"role", "content"}`) or many, by the checkpoint's chat template.

        Args:
            messages: a content is a text or a list of parts, as in OpenAI's API; images and sound come with phase 13.
            chat_template_content_format, add_generation_prompt, continue_final_message: see `apply_chat_template`.
            tools: given to the template, in the form of OpenAI's API; parsing the calls is the caller's business.
            chat_template_kwargs: further variables of the template.

        Upstream: upstream/vllm/entrypoints/llm.py:615 — `LLM.chat`.
        """
        given = {
            "chat_template_content_format": chat_template_content_format,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": chat_template_kwargs,
        }
        prompts = self._render_all(messages, (add_generation_prompt, chat_template, tools), given)
        return self.generate(
            prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs
        )  # fmt: skip

    def enqueue_chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        **rendering: Any,
    ) -> list[str]:
        """As `chat`, but only queue. rendering: the other arguments of `chat` that change the prompt's text.

        Upstream: upstream/vllm/entrypoints/llm.py:709 — `LLM.enqueue_chat`.
        """
        prompts = self._render_all(messages, (add_generation_prompt, chat_template, tools), rendering)
        return self.enqueue(prompts, sampling_params, lora_request, priority, use_tqdm)

    def _render_all(self, messages: Any, arguments: tuple[Any, ...], given: Mapping[str, Any]) -> list[Any]:
        many = [messages] if not _is_many(messages) else list(messages)
        return [self.render_chat(conversation, *arguments, **given) for conversation in many]

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
    ) -> Prompt:
        """The conversation as a prompt of token ids; special tokens come from the template, none are added."""
        from mini_vllm.entrypoints.chat_utils import apply_chat_template

        template = chat_template if chat_template is not None else self.chat_template
        engine = self.llm_engine
        if engine.tokenizer is None or (engine.folder is None and template is None):
            raise ValueError("chat needs a checkpoint with a tokenizer, and a chat template there or as chat_template=")
        extra = chat_template_kwargs or {}
        require(isinstance(extra, Mapping), "chat_template_kwargs", extra, "a dict of variables for the template")
        text = apply_chat_template(
            engine.folder if engine.folder is not None else template,
            messages,
            add_generation_prompt,
            chat_template=template,
            continue_final_message=continue_final_message,
            content_format=chat_template_content_format,
            **{"tools": tools, **extra},
        )
        return {"prompt": text, "prompt_token_ids": engine.tokenizer.encode(text, add_special_tokens=False)}


def _is_many(messages: Any) -> bool:
    """True for a list of conversations."""
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str | bytes)
    return is_list and len(messages) > 0 and not isinstance(messages[0], Mapping)


def _refuse_later(lora_request: Any, mm_processor_kwargs: Any) -> None:
    require(lora_request is None, "lora_request", lora_request, "None so far: phase 11 brings LoRA adapters")
    require(not mm_processor_kwargs, "mm_processor_kwargs", mm_processor_kwargs,
            "None so far: phase 13 brings images and sound")  # fmt: skip
