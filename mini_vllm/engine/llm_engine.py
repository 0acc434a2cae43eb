"""The front end around the core: prompt -> token ids -> core ... -> text, one step at a time.

Upstream twin: `vllm/v1/engine/llm_engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.front_end import FrontEnd
from mini_vllm.engine.input_processor import ProcessedInput, Prompt
from mini_vllm.engine.missing_names import missing_method, refuse_arguments
from mini_vllm.engine.parallel_sampling import fan_out
from mini_vllm.lora.request import LoRARequest
from mini_vllm.metrics.reader import Metric, get_metrics_snapshot
from mini_vllm.metrics.stats import EngineStats
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams


class LLMEngine(FrontEnd):
    """Prompts in, text out, one step at a time.

    Args:
        model: a checkpoint folder or hub name; a model object; None for the toy model.
        tokenizer: has `encode` and `decode`; the checkpoint's own by default.
        with_labs: labs whose code takes the place of ours, "all" or ["02-01", …]: see `mini_vllm.engine.parts`.
        enable_multiprocessing: a process of its own for the core (extra `serve`), which then computes while the caller
            does something else. Upstream's default, here not: there `VLLM_ENABLE_V1_MULTIPROCESSING=0` switches it off.
        engine_args: see `EngineConfig`.

    Attributes:
        engine_core, scheduler, model, sampler: the parts, open to look into while the core is in this process.
        core_client: the way to the core, wherever it is. tokenizer: or None.

    Upstream: upstream/vllm/v1/engine/llm_engine.py:47 — `LLMEngine`.
    """

    def __init__(
        self, model: Any = None, *, tokenizer: Any = None, with_labs: Any = None,
        enable_multiprocessing: bool = False, **engine_args: Any,
    ) -> None:  # fmt: skip
        config = EngineConfig.from_args(**engine_args)
        super().__init__(model, tokenizer, with_labs, enable_multiprocessing, False, config)

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None
    ) -> list[Any]:
        """Call a method of every worker: see `Executor.collective_rpc`.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:410 — `LLMEngine.collective_rpc`.
        """
        core = self._core("collective_rpc", "What the core tells is at `stats`, `get_metrics()`, `core_client.ready`")
        return core.model_executor.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """`func` of each rank's part of the model, by rank.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:419 — `LLMEngine.apply_model`.
        """
        return self.collective_rpc("apply_model", args=(func,))

    @property
    def stats(self) -> EngineStats:
        """Totals since the engine was made. With a core elsewhere it is asked, and those of its parts are copies."""
        self._stats.update_from_core(self.core_client.call_utility("make_stats"))
        return self._stats

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, priority: int = 0,
        output_kind: RequestOutputKind | None = None, arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
    ) -> None:  # fmt: skip
        """Check a prompt and queue it; `n` completions are `n` requests in the core.

        Args:
            output_kind: None: that of `params`. lora_request: the adapter, where the engine has `enable_lora`.

        Raises:
            ValueError, TypeError: what is wrong, by name; nothing has been queued.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:209 — `LLMEngine.add_request`.
        """
        processed = self.process_inputs(prompt, params if params is not None else SamplingParams(), lora_request)
        self.add_processed(request_id, processed, priority, output_kind, arrival_time)

    def process_inputs(
        self, prompt: Prompt, params: SamplingParams, lora_request: LoRARequest | None = None
    ) -> ProcessedInput:
        """Tokenize and check everything that can be checked before queueing; an adapter's files too, when it is new."""
        processed = self.input_processor.process_inputs(prompt, params)
        if lora_request is not None:
            if self.lora_registry.is_new(lora_request):
                self.core_client.call_utility("check_lora", lora_request)
            processed.lora_request = self.lora_registry.note(lora_request)
        self.core_client.check_fits(len(processed.prompt_token_ids), processed.params.max_tokens)
        return processed

    def add_processed(
        self, request_id: str, processed: ProcessedInput, priority: int = 0,
        output_kind: RequestOutputKind | None = None, arrival_time: float | None = None,
    ) -> None:  # fmt: skip
        """Queue what `process_inputs` returned."""
        output_kind = processed.params.output_kind if output_kind is None else output_kind
        request = self.make_request(request_id, processed, priority, arrival_time)
        parent, children = (None, [request]) if request.sampling_params.n == 1 else fan_out(request)
        self.refuse_taken([request_id, *(child.request_id for child in children)])
        for index, child in enumerate(children):
            mine = replace(processed, params=child.sampling_params)
            self.core_client.add_request(child)
            self.output_processor.add_request(child.request_id, mine, output_kind, parent, index)

    def step(self) -> list[RequestOutput]:
        """One step of the core, detokenized. Returns outputs of the requests that got further.

        Raises:
            EngineDeadError: the core had a process of its own, and that is gone.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:287 — `LLMEngine.step`.
        """
        try:
            outputs = self.core_client.get_output()
        except BaseException:
            lost = [i for i in self.output_processor.request_states if not self.core_client.has_request(i)]
            self.output_processor.forget(lost)
            raise
        request_outputs, reqs_to_abort = self.output_processor.process_outputs(outputs.outputs, outputs.timestamp)
        if reqs_to_abort:  # a stop string is known only here
            self.core_client.abort_requests(reqs_to_abort)
        return request_outputs

    def abort_request(self, request_ids: str | list[str], internal: bool = False) -> list[RequestOutput]:
        """End requests now; ids that are unknown are passed over. Of n > 1, the parent's id ends all children.

        Returns:
            The last output of each, with finish reason "abort" (nothing under `FINAL_ONLY` until the whole is done).
        """
        ids = self.output_processor.ids_of(request_ids)
        self.core_client.abort_requests(ids)
        return self.output_processor.abort_requests(ids)

    def has_unfinished_requests(self) -> bool:
        """True while a request waits or runs."""
        return bool(self.output_processor.request_states)

    def get_num_unfinished_requests(self) -> int:
        """Requests that wait or run, as the user counts them: n completions of a prompt are one.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:179 — `LLMEngine.get_num_unfinished_requests`.
        """
        states = self.output_processor.request_states
        return len({state.parent.request_id if state.parent else key for key, state in states.items()})

    def get_tokenizer(self) -> Any:
        """The tokenizer. Raises ValueError where there is none.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:377 — `LLMEngine.get_tokenizer`.
        """
        if self.tokenizer is None:
            raise ValueError("Unable to get tokenizer because `skip_tokenizer_init=True`, or the model has none")
        return self.tokenizer

    def get_metrics(self) -> list[Metric]:
        """Everything counted since the engine was made (`metrics/reader.py`). Raises ValueError without statistics.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:369 — `LLMEngine.get_metrics`.
        """
        return get_metrics_snapshot(self)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes; False, and nothing done, while requests run.

        Args:
            reset_running_requests: preempt them first; they start over.
            reset_connector: forget what a KV connector has stored, too; False where there is none.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:337 — `LLMEngine.reset_prefix_cache`.
        """
        return self.core_client.call_utility("reset_prefix_cache", reset_running_requests, reset_connector)

    def reset_mm_cache(self) -> None:
        """Forget pictures and films that are ready (upstream/vllm/v1/engine/llm_engine.py:333 — `reset_mm_cache`)."""
        if self.input_processor.multimodal is not None:
            self.input_processor.multimodal.forget()
            self.core_client.call_utility("reset_mm_cache")

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter before anybody asks for it; False where it is there. With `load_inplace` it is read again,
        and what the prefix cache holds is forgotten: it was computed with the old one. RuntimeError: requests run.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:394 — `LLMEngine.add_lora`.
        """
        self.lora_registry.is_new(lora_request, may_replace=True)
        added = self.core_client.call_utility("add_lora", lora_request)
        self.lora_registry.note(lora_request)
        return added

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; False where it was not there. A request that asks for it reads it again."""
        return self.core_client.call_utility("remove_lora", lora_id)

    def list_loras(self) -> set[int]:
        """Numbers of the adapters in memory."""
        return self.core_client.call_utility("list_loras")

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in its slot."""
        return self.core_client.call_utility("pin_lora", lora_id)

    def check_health(self, timeout: float = 10.0) -> None:
        """Raise `EngineDeadError` if the core is gone, `TimeoutError` if it gives no sign of life in `timeout` s."""
        self.core_client.check_health(timeout)

    def shutdown(self) -> None:
        """End the core and what it started; a second call does nothing. Happens by itself when the engine goes."""
        self.core_client.shutdown()
        self.output_processor.forget(self.output_processor.request_states)

    def __getattr__(self, name: str) -> Any:
        raise missing_method(self, name)

    @classmethod
    def from_engine_args(
        cls, engine_args: EngineArgs, usage_context: Any = None, stat_loggers: Any = None,
        enable_multiprocessing: bool = False,
    ) -> LLMEngine:  # fmt: skip
        """Upstream: upstream/vllm/v1/engine/llm_engine.py:152 — `LLMEngine.from_engine_args`."""
        refuse_arguments(stat_loggers=stat_loggers)
        return cls(enable_multiprocessing=enable_multiprocessing, **engine_args.as_kwargs())
