"""`AsyncLLM`: many streams at once, in an event loop. Upstream twin: `vllm/v1/engine/async_llm.py`.

    generate() ── add_request ──▶ core        core ── outputs ──▶ output_handler ── put ──▶ a collector per request
        ▲                                                                                            │
        └────────────────────────────────────────── get ─────────────────────────────────────────────┘

One task, the output handler, turns tokens into text for all requests; each `generate` waits for its own collector.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mini_vllm.config.data_parallel import check_data_parallel_rank
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine import EngineCoreRequest
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError
from mini_vllm.engine.front_end import FrontEnd
from mini_vllm.engine.input_processor import Prompt
from mini_vllm.engine.missing_names import missing_method, refuse_arguments
from mini_vllm.engine.output_handler import Death, let_end, start_handler
from mini_vllm.engine.parallel_sampling import fan_out
from mini_vllm.engine.request_output_collector import RequestOutputCollector
from mini_vllm.lora.request import LoRARequest
from mini_vllm.metrics.stats import EngineStats
from mini_vllm.outputs import RequestOutput
from mini_vllm.pool.params import PoolingParams
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from mini_vllm.engine.shared_core import AnyCore


class AsyncLLM(FrontEnd):
    """An engine for concurrent streams; belongs to the event loop in which it is made, else first used.

    Args:
        model, tokenizer, with_labs, engine_args: as `LLMEngine`.
        enable_multiprocessing: a process of its own for the core (extra `serve`), so that text and network never wait
            for the model. False: a thread of this process, in which a debugger can stand. Upstream has no such choice.
        shared_core: one that another process starts, for one of several API servers.

    >>> import asyncio
    >>> from mini_vllm import AsyncLLM, SamplingParams
    >>> async def main():
    ...     llm = AsyncLLM(num_blocks=64)  # the toy model
    ...     outputs = [each async for each in llm.generate("hi", SamplingParams(max_tokens=4, temperature=0), "0")]
    ...     llm.shutdown()
    ...     return len(outputs[-1].outputs[0].token_ids), outputs[-1].finished
    >>> asyncio.run(main())
    (4, True)

    Upstream: upstream/vllm/v1/engine/async_llm.py:70 — `AsyncLLM`.
    """

    def __init__(
        self, model: Any = None, *, tokenizer: Any = None, with_labs: Any = None,
        enable_multiprocessing: bool = False, shared_core: AnyCore | None = None, **engine_args: Any,
    ) -> None:  # fmt: skip
        self.output_handler: asyncio.Task[None] | None = None
        self._death = Death()
        config = EngineConfig.from_args(**engine_args)
        super().__init__(model, tokenizer, with_labs, enable_multiprocessing, True, config, shared_core)
        self._death = Death(self.core_client)
        self._run_output_handler()

    @classmethod
    def from_engine_args(
        cls, engine_args: EngineArgs, start_engine_loop: bool = True, usage_context: Any = None,
        stat_loggers: None = None, enable_multiprocessing: bool = False, shared_core: AnyCore | None = None,
    ) -> AsyncLLM:  # fmt: skip
        """Upstream: upstream/vllm/v1/engine/async_llm.py:232 — `AsyncLLM.from_engine_args`."""
        refuse_arguments(stat_loggers=stat_loggers)
        return cls(enable_multiprocessing=enable_multiprocessing, shared_core=shared_core, **engine_args.as_kwargs())

    @property
    def errored(self) -> bool:
        """True once the core is gone, whether or not anything ran."""
        return self._death.error is not None

    @property
    def dead_error(self) -> BaseException:
        """Why the core is gone."""
        return self._death.error or EngineDeadError()

    @property
    def is_running(self) -> bool:
        """True until the core is gone."""
        return not self.errored

    async def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | PoolingParams,
        arrival_time: float | None = None, lora_request: LoRARequest | None = None, tokenization_kwargs: Any = None,
        trace_headers: Any = None, priority: int = 0, data_parallel_rank: int | None = None, prompt_text: Any = None,
        reasoning_ended: bool | None = None, reasoning_parser_kwargs: dict[str, Any] | None = None,
        output_kind: RequestOutputKind | None = None,
    ) -> RequestOutputCollector:  # fmt: skip
        """Check a prompt, queue it, and return what its outputs will come through. Raises as `generate`.

        Upstream: upstream/vllm/v1/engine/async_llm.py:280 — `AsyncLLM.add_request`.
        """
        self._death.check()
        refuse_arguments(tokenization_kwargs=tokenization_kwargs, trace_headers=trace_headers, prompt_text=prompt_text)
        processed = await self.input_processor.process_inputs_async(prompt, params)
        if lora_request is not None:
            if self.lora_registry.is_new(lora_request):
                await self._ask("check_lora", lora_request)
            processed.lora_request = self.lora_registry.note(lora_request)
        if not self.core_client.ready.fits_any:
            size = len(processed.prompt_token_ids), processed.params.max_tokens
            await self.core_client.call_utility_async("check_fits", *size)
        request = self.make_request(request_id, processed, priority, arrival_time)
        request.reasoning_ended, request.reasoning_parser_kwargs = reasoning_ended, reasoning_parser_kwargs
        request.data_parallel_rank = check_data_parallel_rank(data_parallel_rank, self.config.data_parallel_size)
        parent, children = (None, [request]) if request.sampling_params.n == 1 else fan_out(request)
        self.refuse_taken([request_id, *(child.request_id for child in children)])
        self._run_output_handler()
        kind: RequestOutputKind = params.output_kind if output_kind is None else output_kind
        queue = RequestOutputCollector(kind, request_id)
        for index, child in enumerate(children):
            mine = replace(processed, params=child.sampling_params)
            self.output_processor.add_request(child.request_id, mine, kind, parent, index, queue)
        try:
            for child in children:
                if child.request_id in self.output_processor.request_states:  # not aborted while the others were sent
                    await self.core_client.add_request_async(child)
        except BaseException:
            await self.abort(request_id)
            raise
        return queue

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | PoolingParams, request_id: str, *,
        prompt_text: Any = None, lora_request: LoRARequest | None = None, tokenization_kwargs: Any = None,
        trace_headers: Any = None, priority: int = 0, data_parallel_rank: int | None = None,
        reasoning_ended: bool | None = None, reasoning_parser_kwargs: dict[str, Any] | None = None,
        output_kind: RequestOutputKind | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:  # fmt: skip
        """Stream the outputs of one request; of `n` completions, as they come.

        A consumer that leaves early, or is cancelled, ends the request in the core. One that is slow gets what has
        come meanwhile in one piece.

        Args:
            request_id: unique among the unfinished. data_parallel_rank: the replica; None: the one with least to do.
            output_kind: what each output holds; None: what the parameters say, else `CUMULATIVE`.
            lora_request: the adapter, where the engine has `enable_lora`.
            reasoning_ended, reasoning_parser_kwargs: see `EngineCoreRequest`.

        Raises:
            ValueError, TypeError: what is wrong, by name. EngineDeadError: the core is gone. EngineGenerateError:
                anything else, as its cause; the engine goes on.

        Upstream: upstream/vllm/v1/engine/async_llm.py:524 — `AsyncLLM.generate`.
        """
        queue: RequestOutputCollector | None = None
        finished = False
        try:
            queue = await self.add_request(
                request_id, prompt, sampling_params, None, lora_request, tokenization_kwargs, trace_headers, priority,
                data_parallel_rank, prompt_text, reasoning_ended, reasoning_parser_kwargs, output_kind,
            )  # fmt: skip
            while not finished:
                output = queue.get_nowait() or await queue.get()
                finished = output.finished
                yield output
        except (EngineDeadError, ValueError, TypeError):
            raise
        except Exception as error:
            raise EngineGenerateError(f"{type(error).__name__}: {error}") from error
        finally:
            if queue is not None and not finished and not self.errored:  # the consumer has left, or something broke
                await self.abort(request_id)

    def encode(
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str, lora_request: LoRARequest | None = None,
        trace_headers: Any = None, priority: int = 0, tokenization_kwargs: Any = None,
        reasoning_ended: bool | None = None,
    ) -> AsyncGenerator[Any, None]:  # fmt: skip
        """The pooled result of one prompt, a `PoolingRequestOutput`; rules and errors are those of `generate`.

        Upstream: upstream/vllm/v1/engine/async_llm.py:803 — `AsyncLLM.encode`.
        """
        upstreams = {"trace_headers": trace_headers, "tokenization_kwargs": tokenization_kwargs}
        more = {"lora_request": lora_request, "priority": priority, "reasoning_ended": reasoning_ended, **upstreams}
        return self.generate(prompt, pooling_params, request_id, **more)

    def _run_output_handler(self) -> None:
        """Start the output handler where an event loop runs. It holds no reference to this object.

        Upstream: upstream/vllm/v1/engine/async_llm.py:637 — `AsyncLLM._run_output_handler`.
        """
        if self.output_handler is None:
            self.output_handler = start_handler(self.core_client, self.output_processor, self._death)

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """End requests now; ids that are unknown are passed over. Whoever consumes them gets a last output.

        Upstream: upstream/vllm/v1/engine/async_llm.py:709 — `AsyncLLM.abort`.
        """
        ids = self.output_processor.ids_of(request_id)
        self.output_processor.abort_requests(ids)
        if ids and not self.errored:
            await self.core_client.abort_requests_async(ids)

    async def notify_kv_transfer_request_rejected(
        self, request_id: str, kv_transfer_params: dict[str, Any], *, data_parallel_rank: int | None = None
    ) -> None:
        """Have the KV connector, where there is one, hear of the end of a request that never reached the core, so that
        whoever keeps blocks for it lets go of them. Raises EngineDeadError: the core is gone.

        Upstream: upstream/vllm/v1/engine/async_llm.py:723 — `AsyncLLM.notify_kv_transfer_request_rejected`.
        """
        self._death.check()
        if self.config.kv_transfer_config is not None:
            params = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": dict(kv_transfer_params)})
            request = EngineCoreRequest(request_id, [0], params, time.time(), abort_immediately=True)
            self._run_output_handler()  # a core in a thread makes no step without it
            await self.core_client.add_request_async(request)

    async def get_stats(self) -> EngineStats:
        """Totals since the engine was made; `LLMEngine.stats`."""
        self._stats.update_from_core(await self._ask("make_stats"))
        return self._stats

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """See `LLMEngine.reset_prefix_cache`."""
        return await self._ask("reset_prefix_cache", reset_running_requests, reset_connector)

    async def reset_mm_cache(self) -> None:
        """See `LLMEngine.reset_mm_cache`."""
        if (multimodal := self.input_processor.multimodal) is not None:
            multimodal.forget()
            await self._ask("reset_mm_cache")

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """See `LLMEngine.add_lora` (upstream/vllm/v1/engine/async_llm.py:948 — `AsyncLLM.add_lora`)."""
        self.lora_registry.is_new(lora_request, may_replace=True)
        added = await self._ask("add_lora", lora_request)
        self.lora_registry.note(lora_request)
        return added

    async def remove_lora(self, lora_id: int) -> bool:
        """See `LLMEngine.remove_lora`."""
        return await self._ask("remove_lora", lora_id)

    async def list_loras(self) -> set[int]:
        """See `LLMEngine.list_loras`."""
        return await self._ask("list_loras")

    async def pin_lora(self, lora_id: int) -> bool:
        """See `LLMEngine.pin_lora`."""
        return await self._ask("pin_lora", lora_id)

    async def scale_elastic_ep(self, new_data_parallel_size: int, drain_timeout: float = 300) -> None:
        """See `engine/elastic_replicas.py` (upstream/vllm/v1/engine/async_llm.py:994 — `scale_elastic_ep`)."""
        await self.core_client.scale_elastic_ep(new_data_parallel_size, drain_timeout)

    async def check_health(self, timeout: float = 10.0) -> None:
        """See `LLMEngine.check_health` (upstream/vllm/v1/engine/async_llm.py:900 — `check_health`)."""
        self._death.check()
        await self.core_client.check_health_async(timeout)

    async def _ask(self, method: str, *args: Any) -> Any:
        self._death.check()
        return await self.core_client.call_utility_async(method, *args)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the core; unfinished requests end with `EngineDeadError`. Happens by itself when the engine goes.

        Args:
            timeout: seconds that requests have to end before; None: `shutdown_timeout`. They end in the engine's loop:
                whoever calls this in it gives them none (a server waits in `entrypoints/launcher.py`).
        """
        if self._death.owner.refusal is not None:  # a forked child has nothing to end
            return
        if self.output_handler is not None and not self.errored:
            seconds = self.config.shutdown_timeout if timeout is None else timeout
            let_end(self.output_handler, self.output_processor, seconds)
        self._death.error = self._death.error or EngineDeadError("it was shut down")
        if hasattr(self, "core_client"):
            self.core_client.shutdown()
        if hasattr(self, "output_processor"):
            self.output_processor.end_tracing()
        handler, self.output_handler = self.output_handler, None
        if handler is not None and not handler.get_loop().is_closed():
            handler.get_loop().call_soon_threadsafe(handler.cancel)

    def __getattr__(self, name: str) -> Any:
        raise missing_method(self, name)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.shutdown(0)
