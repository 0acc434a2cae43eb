"""The core's loop: four beats, again and again.

    EngineCore.step:  schedule -> execute_model -> sample_tokens -> update_from_output

Upstream twin: `vllm/v1/engine/core.py`. The core knows nothing of text, and nothing of who asks: `core_client.py` is
the front end's way to it, in the same process (the default here) or, with `core_proc.py` around it, in one of its own
(the default there).
"""

from __future__ import annotations

from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_utils import get_request_block_hasher
from mini_vllm.core.sched.drafts import Drafts
from mini_vllm.core.sched.encoder_inputs import EncoderInputs
from mini_vllm.core.sched.lora_slots import LoRASlots
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.remote_kv import RemoteKV
from mini_vllm.distributed.kv_event_publisher import make_event_publisher
from mini_vllm.engine import EngineCoreOutput, EngineCoreReadyResponse, EngineCoreRequest
from mini_vllm.engine.batch_queue import BatchQueue
from mini_vllm.engine.parts import EngineParts
from mini_vllm.executor.abstract import Executor
from mini_vllm.kv_cache_interface import KVCacheConfig
from mini_vllm.lora.request import LoRARequest
from mini_vllm.metrics.stats import SchedulerStats
from mini_vllm.request import Request, RequestStatus
from mini_vllm.structured_output.engine import make_structured_output_manager
from mini_vllm.worker import lora_model_runner_mixin as lora_calls
from mini_vllm.worker.encoder_runner import reset_encoder_cache
from mini_vllm.worker.worker import WorkerParts

_MAX_EMPTY_STEPS = 8  # in a row, before the core gives up; one is in order, when a lone request preempts itself


class EngineCore:
    """The loop: plans a step, runs it, and takes in what came out.

    Args:
        model: a `ResolvedModel`, or an object that obeys the contract of `models/interfaces_base.py`.
        config: checked engine arguments.
        parts: what it is put together from; by default ours.
        tokenizer: for grammars alone, which need the bytes of tokens; None: the checkpoint's own.

    Upstream: upstream/vllm/v1/engine/core.py:94 — `EngineCore`.
    """

    def __init__(
        self, model: Any, config: EngineConfig, parts: EngineParts | None = None, tokenizer: Any = None
    ) -> None:
        parts = parts or EngineParts()
        self.config = config
        self.parts = parts = parts.fit(parts, config)
        self.resolved_model = ResolvedModel.of(model)
        self.max_model_len = config.resolve_max_model_len(*self.resolved_model.lengths)
        if config.speculative_config is not None:
            config.speculative_config.resolve_draft_model(self.resolved_model)
        self.sampler = parts.sampler()
        of_workers = WorkerParts(self.sampler, parts.attention, parts.model, parts.vision_tower, parts.dp_group)
        self.model_executor = Executor.get_class(config)(config, self.resolved_model, of_workers)
        self.kv_cache_config = self._initialize_kv_caches()
        self.num_blocks = self.kv_cache_config.num_blocks
        caching, speculative = config.enable_prefix_caching, config.speculative_config
        self.kv_cache_manager = KVCacheManager(
            kv_cache_config=self.kv_cache_config, enable_caching=caching, max_model_len=self.max_model_len,
            block_pool=parts.block_pool, max_num_batched_tokens=config.max_num_batched_tokens,
            enable_kv_cache_events=config.kv_events.enable_kv_cache_events,
            use_eagle=speculative is not None and speculative.use_eagle(), expects_drafts=speculative is not None,
        )  # fmt: skip
        grammars = make_structured_output_manager(config, self.resolved_model, tokenizer, parts.jump_forward)
        self.structured_output_manager = grammars
        self.scheduler = parts.scheduler(
            config.scheduler, self.kv_cache_manager, self.max_model_len, structured_output_manager=grammars,
            drafts=None if speculative is None else Drafts(speculative, grammars), check_stop=parts.check_stop,
            lora=None if config.lora is None else LoRASlots(config.lora.max_loras),
            connector=RemoteKV.of(self), encoder=EncoderInputs.of(config, self.resolved_model),
            kv_event_publisher=make_event_publisher(config.kv_events, config.data_parallel_rank),
        )  # fmt: skip
        size = self.model_executor.max_concurrent_batches
        self.batch_queue = BatchQueue(self, size) if size > 1 else None
        self.step_fn = self.step if self.batch_queue is None else self.batch_queue.step_with_batch_queue
        hasher, transfer = parts.hash_block_tokens or config.cache.get_block_hasher(), config.kv_transfer_config
        self.block_hasher = get_request_block_hasher(config.block_size, hasher) if caching or transfer else None
        self.num_steps = self.num_scheduled_tokens = self._num_empty_steps = 0
        parts.on_start(self)

    def _initialize_kv_caches(self) -> KVCacheConfig:
        """Ask what the layers keep, form groups, decide on the number of blocks, and have the workers make them.

        Upstream: upstream/vllm/v1/engine/core.py:235 — `EngineCore._initialize_kv_caches`.
        """
        executor = self.model_executor
        specs, memory = executor.get_kv_cache_specs(), executor.determine_available_memory()
        kv_cache_config = get_kv_cache_config(specs, self.config, self.max_model_len, memory)
        executor.initialize_from_config(kv_cache_config)
        return kv_cache_config

    @property
    def model_runner(self) -> Any:
        """The runner, to look into. Raises RuntimeError where it is in another process."""
        return self.model_executor.driver_worker.model_runner

    @property
    def model(self) -> Any:
        """The model, to look into. Raises RuntimeError where it is in another process."""
        return self.model_executor.driver_worker.model

    def ready_response(self) -> EngineCoreReadyResponse:
        """What the front end has to know of the model and the pool."""
        model, fits_any = self.resolved_model, True
        try:
            self.check_fits(1, None)
        except ValueError:
            fits_any = False
        return EngineCoreReadyResponse(
            self.max_model_len, self.num_blocks, fits_any, model.vocab_size, list(model.eos_token_ids),
            dict(model.default_sampling_params),
            0 if self.scheduler.encoder is None else self.scheduler.encoder.cache_size,
        )  # fmt: skip

    def preprocess_add_request(self, request: EngineCoreRequest) -> Request:
        """What the scheduler keeps of a request; the full blocks of its prompt are hashed here.

        Upstream: upstream/vllm/v1/engine/core.py:794 — `EngineCore.preprocess_add_request`.
        """
        made = Request.from_engine_core_request(request, self.block_hasher)
        if made.use_structured_output:
            self.structured_output_manager.grammar_init(made)
        return made

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises ValueError if its id is taken or it can never fit the pool."""
        self.scheduler.add_request(request)
        if request.abort_immediately:  # so that a KV connector hears of its end
            self.abort_requests([request.request_id])

    def step(self) -> list[EngineCoreOutput]:
        """One beat for all requests: plan, compute, sample, take in. Returns what is new, request by request.

        Nothing to do is an empty list. A plan of chunks alone samples nothing, and is taken in all the same.

        Upstream: upstream/vllm/v1/engine/core.py:428 — `EngineCore.step`; by default it plans ahead (`batch_queue.py`).
        """
        if not self.has_requests():
            return []
        scheduler_output = self.scheduler.schedule()
        self.execute(scheduler_output)
        model_output = self.sample(scheduler_output)
        self.watch_progress(scheduler_output)
        outputs = self.scheduler.update_from_output(scheduler_output, model_output)
        if self.config.speculative_config is not None and scheduler_output.total_num_scheduled_tokens:
            self.scheduler.update_draft_token_ids(self.model_executor.take_draft_token_ids())
        return outputs

    def execute(self, scheduler_output: SchedulerOutput) -> None:
        """Have the model compute a plan. Raises what that raises, and ends the requests of the plan."""
        try:
            self.model_executor.execute_model(scheduler_output)
        except BaseException:
            self.drop_step(scheduler_output)
            raise

    def sample(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """The tokens of the plan just executed; `non_block`: as a `PendingOutput`. Raises as `execute`."""
        executor = self.model_executor
        sample_tokens = executor.sample_tokens_non_block if non_block else executor.sample_tokens
        try:
            if not scheduler_output.has_structured_output_requests:
                return sample_tokens()
            return sample_tokens(self.scheduler.get_grammar_bitmask(scheduler_output))
        except BaseException:
            self.drop_step(scheduler_output)
            raise

    def drop_step(self, scheduler_output: SchedulerOutput) -> None:
        """The model failed or was interrupted: end the requests of this step, and let nobody find their blocks."""
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self.scheduler.requests.get(request_id)
            if request is not None:  # a deferred step may hold one that has ended meanwhile
                self.kv_cache_manager.evict_after(request, request.num_computed_tokens - num_tokens)
        self.scheduler.finish_requests(list(scheduler_output.num_scheduled_tokens), RequestStatus.FINISHED_ERROR)
        if self.scheduler.encoder is not None:
            self.scheduler.encoder.drop_step(scheduler_output)

    def watch_progress(self, scheduler_output: SchedulerOutput, in_flight: bool = False) -> None:
        """Count a step. Raises RuntimeError after many empty plans while requests wait and nothing is in flight."""
        num_tokens = scheduler_output.total_num_scheduled_tokens
        self.num_steps += num_tokens > 0
        self.num_scheduled_tokens += num_tokens
        waits = self.scheduler.has_unfinished_requests() and not self.scheduler.has_finished_requests()
        stuck = num_tokens == 0 and waits and not (in_flight or self.scheduler.skipped_waiting)
        self._num_empty_steps = self._num_empty_steps + 1 if stuck else 0
        if self._num_empty_steps > _MAX_EMPTY_STEPS:
            raise RuntimeError(
                f"the scheduler planned nothing for {self._num_empty_steps} steps while "
                f"{len(self.scheduler.requests)} requests wait: {list(self.scheduler.requests.values())[:3]}"
            )

    def abort_requests(self, request_ids: list[str]) -> None:
        """End these requests now and free their blocks; ids that are unknown are passed over."""
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
        if self.batch_queue is not None:
            self.batch_queue.forget(request_ids)

    def has_requests(self) -> bool:
        """True while there is work, or an ended request of which the model runner has not heard."""
        return self.scheduler.has_unfinished_requests() or self.scheduler.has_finished_requests()

    def check_fits(self, num_prompt_tokens: int, max_tokens: int | None) -> None:
        """Raise ValueError if a request of this size could never be finished."""
        self.kv_cache_manager.check_fits(num_prompt_tokens, max_tokens)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """See `LLMEngine.reset_prefix_cache` (upstream/vllm/v1/engine/core.py:631 — `reset_prefix_cache`)."""
        return self.scheduler.reset_prefix_cache(reset_running_requests, reset_connector)

    def reset_mm_cache(self) -> None:
        """Nothing: what is ready lies in the front end (upstream/vllm/v1/engine/core.py:616 — `reset_mm_cache`)."""

    def reset_encoder_cache(self) -> None:
        """Forget the embeddings of media (upstream/vllm/v1/engine/core.py:638 — `EngineCore.reset_encoder_cache`)."""
        if self.scheduler.encoder_cache_manager is not None:
            self.scheduler.encoder_cache_manager.reset()
            self.model_executor.collective_rpc(reset_encoder_cache)

    def check_lora(self, lora_request: LoRARequest) -> None:
        """Raise what reading an adapter would raise; nothing is kept of one that is not there yet."""
        self.model_executor.collective_rpc(lora_calls.check_lora, args=(lora_request,))

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """See `LLMEngine.add_lora` (upstream/vllm/v1/engine/core.py:763 — `EngineCore.add_lora`)."""
        if lora_request.load_inplace and not self.reset_prefix_cache(False, self.scheduler.connector is not None):
            raise RuntimeError("an adapter can be read again (load_inplace) only while no request runs")
        return self.model_executor.collective_rpc(lora_calls.add_lora, args=(lora_request,))[0]

    def remove_lora(self, lora_id: int) -> bool:
        """See `LLMEngine.remove_lora`."""
        return self.model_executor.collective_rpc(lora_calls.remove_lora, args=(lora_id,))[0]

    def list_loras(self) -> set[int]:
        """See `LLMEngine.list_loras`."""
        return self.model_executor.collective_rpc(lora_calls.list_loras)[0]

    def pin_lora(self, lora_id: int) -> bool:
        """See `LLMEngine.pin_lora`."""
        return self.model_executor.collective_rpc(lora_calls.pin_lora, args=(lora_id,))[0]

    def make_stats(self) -> SchedulerStats:
        """Counts since the core was made, and what waits and runs now: as upstream's `Scheduler.make_stats`."""
        scheduler, (cudagraph_stats, expert_load) = self.scheduler, self.model_executor.get_stats()
        drafts, remote = scheduler.drafts, scheduler.connector
        return SchedulerStats(
            num_running_reqs=len(scheduler.running), num_waiting_reqs=scheduler.table.num_waiting,
            kv_cache_usage=self.kv_cache_manager.usage, prefix_cache_stats=self.kv_cache_manager.prefix_cache_stats,
            num_steps=self.num_steps, num_scheduled_tokens=self.num_scheduled_tokens,
            num_preemptions=scheduler.num_preemptions, cudagraph_stats=cudagraph_stats, expert_load=expert_load,
            spec_decoding_stats=None if drafts is None else drafts.spec_decoding_stats,
            **({} if remote is None else remote.make_stats()),
        )  # fmt: skip

    def profile(self, is_start: bool = True) -> list[dict[str, Any]]:
        """Start or stop a profile (upstream/vllm/v1/engine/core.py:613 — `EngineCore.profile`)."""
        from mini_vllm.profiler.wrapper import profile_core

        return profile_core(self, is_start)

    def shutdown(self) -> None:
        """End what this core started (upstream/vllm/v1/engine/core.py:597 — `EngineCore.shutdown`)."""
        if self.config.cudagraph_metrics and (graphs := self.model_executor.get_stats()[0]) is not None:
            graphs.log(self.config)
        self.model_executor.shutdown()
        if self.scheduler.connector is not None:
            self.scheduler.connector.connector.shutdown()
        self.structured_output_manager.clear_backend()
