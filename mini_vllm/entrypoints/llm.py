"""`LLM`: the offline front door. All prompts in, all results out. Upstream twin: `vllm/entrypoints/llm.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.input_processor import Prompt
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.missing_names import missing_method
from mini_vllm.entrypoints.generate.beam_search.offline import BeamSearchOfflineMixin
from mini_vllm.entrypoints.offline_chat import OfflineChatMixin
from mini_vllm.entrypoints.offline_utils import Bar
from mini_vllm.entrypoints.pooling.offline import PoolingOfflineMixin
from mini_vllm.lora.request import LoRARequest
from mini_vllm.metrics.reader import Metric
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.checks import require

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM(PoolingOfflineMixin, BeamSearchOfflineMixin, OfflineChatMixin):
    """A model ready to continue prompts.

    Args:
        model: a checkpoint folder, a hub name (extra `hub`), or a model object; None for the toy model.
        tokenizer: a folder, a hub name, or an object; by default the checkpoint's own.
        chat_template: a template, or a file with one, in place of the checkpoint's.
        with_labs: labs whose code takes the place of ours, "all" or ["02-01", …]: see `mini_vllm.engine.parts`.
        engine_args: `block_size`, `num_blocks`, `max_num_seqs`, `max_num_batched_tokens`, `attention_backend`,
            `cudagraph_mode`, … (see `EngineArgs`); None means the default. `disable_log_stats=False` has the metrics of
            requests and `get_metrics`: upstream/vllm/entrypoints/llm.py:236 — "kwargs["disable_log_stats"] = True".

    Methods of upstream that are not here raise an AttributeError that says what to use instead.

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
        engine_args.setdefault("disable_log_stats", True)  # unlike the engines, as upstream
        self.llm_engine = LLMEngine(model, tokenizer=tokenizer, with_labs=with_labs, **engine_args)
        self.model_config = self.llm_engine.config.model_config
        self.input_processor = self.llm_engine.input_processor
        self.default_sampling_params = self.llm_engine.default_sampling_params
        self.chat_template = chat_template
        self._request_counter = itertools.count()
        self._enqueued: list[str] = []
        self._done: dict[str, RequestOutput] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Statistics are on by default here: upstream/vllm/entrypoints/llm.py:387 — `LLM.from_engine_args`."""
        return cls(**{"disable_log_stats": False, **engine_args.as_kwargs()})

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
        return self.llm_engine.apply_model(func)

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
        return SamplingParams.from_optional(**self.llm_engine.default_sampling_params)

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, use_tqdm: Bar = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None, priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None, mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:  # fmt: skip
        """Continue every prompt; results in the order of the prompts.

        Args:
            prompts: one or many; each a string, a list of token ids, or `{"prompt_token_ids": [...]}` /
                `{"prompt": "..."}` (`TokensPrompt`, `TextPrompt`).
            sampling_params: one for all, or one for each prompt; None: the checkpoint's defaults.
            use_tqdm: show a progress bar on a terminal when there is more than one prompt (upstream's name); or what
                makes one, as tqdm does.
            priority: one number for each prompt, lower first (policy "priority"; no effect under another, as upstream).
            tokenization_kwargs: {"add_special_tokens": False} for texts that hold their special tokens already.
            lora_request: an adapter for all, or one or None for each prompt (`enable_lora`).
            mm_processor_kwargs: settings of the model's processor, for all prompts given as dicts.

        Raises:
            ValueError, TypeError: what is wrong with which prompt. All prompts are looked at before any is queued.

        Upstream: upstream/vllm/entrypoints/llm.py:422 — `LLM.generate`.
        """
        processed = self._process(prompts, sampling_params, tokenization_kwargs, lora_request, mm_processor_kwargs)
        ids = self._add_requests(processed, priority)
        return self._run_engine(ids, use_tqdm)

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        use_tqdm: Bar = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """As `generate`, but only queue the prompts, and return the ids of their requests.

        Upstream: upstream/vllm/entrypoints/llm.py:487 — `LLM.enqueue`.
        """
        processed = self._process(prompts, sampling_params, tokenization_kwargs, lora_request, mm_processor_kwargs)
        ids = self._add_requests(processed, priority)
        self._enqueued += ids
        return ids

    def wait_for_completion(self, output_type: Any = None, *, use_tqdm: Bar = True) -> list[RequestOutput]:
        """Run what `enqueue` has queued; results in the order in which it was queued, [] where nothing was.

        output_type: None or `RequestOutput`, the one kind of output.
        Upstream: upstream/vllm/entrypoints/llm.py:547 — `LLM.wait_for_completion`.
        """
        ok = output_type in (None, RequestOutput, (RequestOutput,))
        require(ok, "output_type", output_type, "None or RequestOutput: `encode`, `embed` and `score` wait themselves")
        ids, self._enqueued = self._enqueued, []
        return self._run_engine(ids, use_tqdm)
