"""The front end around the core: prompt -> token ids -> `EngineCore` ... -> text.

Upstream twin: `vllm/v1/engine/llm_engine.py`.
"""

from __future__ import annotations

import time
from typing import Any

from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.input_processor import InputProcessor, ProcessedInput, Prompt
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.engine.parallel_sampling import ParentRequest
from mini_vllm.engine.parts import parts_from_labs
from mini_vllm.metrics.stats import EngineStats
from mini_vllm.model_loader.checkpoint import resolve_model
from mini_vllm.outputs import RequestOutput
from mini_vllm.request import Request
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams


class LLMEngine:
    """Prompts in, text out, one step at a time.

    Args:
        model: a checkpoint folder or hub name; a model object; None for the toy model.
        tokenizer: has `encode` and `decode`; the checkpoint's own by default.
        with_labs: labs whose code takes the place of ours, "all" or ["02-01", …]: see `mini_vllm.engine.parts`.
        engine_args: see `EngineConfig`.

    Attributes:
        engine_core, scheduler, model, sampler, tokenizer: the parts, open to look into.
        stats: totals (`EngineStats`).

    Upstream: upstream/vllm/v1/engine/llm_engine.py:47 — `LLMEngine`.
    """

    def __init__(self, model: Any = None, *, tokenizer: Any = None, with_labs: Any = None, **engine_args: Any) -> None:
        config = EngineConfig.from_args(**engine_args)
        model, tokenizer, self.folder = resolve_model(model, tokenizer, config)
        parts = parts_from_labs(with_labs)
        model = parts.model(model, self.folder, config)
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self.engine_core = EngineCore(model, config, parts)
        self.scheduler = self.engine_core.scheduler
        self.sampler = self.engine_core.sampler
        self.max_model_len = self.engine_core.max_model_len
        self.input_processor = InputProcessor(tokenizer, model.vocab_size, self.max_model_len, model.eos_token_ids)
        prefix_cache = self.engine_core.kv_cache_manager.prefix_cache_stats
        self._stats = EngineStats(prefix_cache=prefix_cache, expert_load=getattr(model, "expert_load", None))
        self.output_processor = OutputProcessor(tokenizer, self._stats)

    @property
    def stats(self) -> EngineStats:
        """Totals since the engine was made."""
        self._stats.num_steps = self.engine_core.num_steps
        self._stats.num_scheduled_tokens = self.engine_core.num_scheduled_tokens
        graphs = self.engine_core.model_runner.graphs
        self._stats.cudagraph = graphs.stats if graphs else None
        return self._stats

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        priority: int = 0,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        arrival_time: float | None = None,
    ) -> None:
        """Check a prompt and queue it; `n` completions are `n` requests in the core.

        Raises:
            ValueError, TypeError: what is wrong, by name; nothing has been queued.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:209 — `LLMEngine.add_request`.
        """
        processed = self.process_inputs(prompt, params if params is not None else SamplingParams())
        self.add_processed(request_id, processed, priority, output_kind, arrival_time)

    def process_inputs(self, prompt: Prompt, params: SamplingParams) -> ProcessedInput:
        """Tokenize and check everything that can be checked before queueing."""
        processed = self.input_processor.process_inputs(prompt, params)
        self.engine_core.kv_cache_manager.check_fits(len(processed.prompt_token_ids), processed.params.max_tokens)
        return processed

    def add_processed(
        self,
        request_id: str,
        processed: ProcessedInput,
        priority: int = 0,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        arrival_time: float | None = None,
    ) -> None:
        """Queue what `process_inputs` returned."""
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ValueError(f"priority must be a whole number (lower runs first), got {priority!r}")
        if priority and self.config.scheduling_policy != "priority":
            raise ValueError(f"priority={priority} needs scheduling_policy='priority'")
        arrival_time = time.time() if arrival_time is None else arrival_time
        n = processed.params.n
        children = [(request_id, processed.params)]
        parent = ParentRequest(request_id, n) if n > 1 else None
        if parent is not None:
            children = [parent.child(i, processed.params) for i in range(n)]
        taken = [i for i in [request_id, *(child_id for child_id, _ in children)] if i in self.scheduler.requests]
        if taken:
            raise ValueError(f"request_id {taken[0]!r} belongs to an unfinished request")
        for index, (child_id, params) in enumerate(children):
            child = ProcessedInput(processed.prompt, processed.prompt_token_ids, params, processed.cache_salt)
            self.output_processor.add_request(child_id, child, output_kind, parent, index)
            self.engine_core.add_request(
                Request(
                    child_id,
                    processed.prompt_token_ids,
                    params,
                    arrival_time=arrival_time,
                    priority=priority,
                    block_hasher=self.engine_core.block_hasher,
                    cache_salt=processed.cache_salt,
                )
            )

    def step(self) -> list[RequestOutput]:
        """One step of the core, detokenized. Returns outputs of the requests that got further.

        Upstream: upstream/vllm/v1/engine/llm_engine.py:287 — `LLMEngine.step`.
        """
        core_outputs = self.engine_core.step_fn()
        request_outputs, reqs_to_abort = self.output_processor.process_outputs(core_outputs)
        if reqs_to_abort:  # a stop string is known only here
            self.engine_core.abort_requests(reqs_to_abort)
        return request_outputs

    def abort_request(self, request_ids: str | list[str]) -> list[RequestOutput]:
        """End requests now; ids that are unknown are passed over. Of n > 1, the parent's id ends all children.

        Returns:
            The last output of each, with finish reason "abort" (nothing under `FINAL_ONLY` until the whole is done).
        """
        wanted = {request_ids} if isinstance(request_ids, str) else set(request_ids)
        states = self.output_processor.request_states
        ids = [i for i, s in states.items() if i in wanted or (s.parent and s.parent.request_id in wanted)]
        self.engine_core.abort_requests(ids)
        return self.output_processor.abort_requests(ids)

    def has_unfinished_requests(self) -> bool:
        """True while a request waits or runs."""
        return self.scheduler.has_unfinished_requests()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while requests run."""
        return self.scheduler.reset_prefix_cache()
