"""What `LLMEngine` and `AsyncLLM` have in common: checked prompts on one side, a client of the core on the other.

Upstream has it twice: in `upstream/vllm/v1/engine/llm_engine.py` and `upstream/vllm/v1/engine/async_llm.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mini_vllm.config.data_parallel import has_replicas, refuse_replicas
from mini_vllm.config.model import ModelConfig
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine import EngineCoreRequest
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.core_client import EngineCoreClient, InprocClient
from mini_vllm.engine.input_processor import InputProcessor, ProcessedInput
from mini_vllm.engine.lora_registry import LoRARegistry
from mini_vllm.engine.multimodal_inputs import make_multimodal_inputs
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.engine.parts import parts_from_labs
from mini_vllm.logger import warning_once
from mini_vllm.metrics.loggers import StatLogger
from mini_vllm.metrics.stats import EngineStats
from mini_vllm.model_loader.checkpoint import resolve_model
from mini_vllm.sample.logits_processor import has_custom_logitsprocs

if TYPE_CHECKING:
    from mini_vllm.engine.shared_core import AnyCore
    from mini_vllm.engine.utils import CoreSetup


class FrontEnd:
    """Makes the core where it is wanted, and what turns prompts into requests and outputs into text.

    Args:
        enable_multiprocessing: a process of its own for the core (extra `serve`). It holds no scheduler and no model
            then: `.scheduler`, `.engine_core`, `.model` and `.sampler` raise.
        asyncio_mode: for `AsyncLLM`. config: in the place of `engine_args`.
        shared_core: one that another process starts, with `enable_multiprocessing` and `asyncio_mode`.
    """

    def __init__(
        self, model: Any, tokenizer: Any, with_labs: Any, enable_multiprocessing: bool, asyncio_mode: bool,
        config: EngineConfig, shared_core: AnyCore | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(enable_multiprocessing, bool):
            raise ValueError(f"enable_multiprocessing must be True or False, got {enable_multiprocessing!r}")
        refuse_replicas(config, type(self).__name__, enable_multiprocessing and asyncio_mode)
        self.config = config
        self.core_client: EngineCoreClient
        self.resolved_model, self.tokenizer, self.folder = resolve_model(model, tokenizer, config)
        if config.reasoning is not None:
            config.reasoning.initialize_token_ids(self.tokenizer)
        if enable_multiprocessing:
            self.core_client = _make_mp_client(
                core_setup(config, self.resolved_model, with_labs, tokenizer), asyncio_mode, shared_core
            )
        else:
            core = EngineCore(self.resolved_model, config, parts_from_labs(with_labs), self.tokenizer)
            self.core_client = _make_inproc_client(core, asyncio_mode)
        ready = self.core_client.ready
        self.max_model_len = ready.max_model_len
        wanted = config.model_config
        wanted.resolve(self.resolved_model, model, tokenizer, ready.max_model_len)
        self.default_sampling_params = wanted.get_diff_sampling_param(self.resolved_model, self.folder)
        custom = wanted.logits_processors
        eos_token_ids = wanted.eos_token_ids(self.resolved_model, self.folder)
        self.input_processor = InputProcessor(
            self.tokenizer, ready.vocab_size, ready.max_model_len, eos_token_ids, config.max_logprobs,
            config.structured_outputs, custom if has_custom_logitsprocs(custom) else None, config.reasoning,
            config.pooler_config if config.runner_type == "pooling" else None,
            make_multimodal_inputs(self.resolved_model, ready.mm_encoder_cache_size),
        )  # fmt: skip
        self.lora_registry = LoRARegistry(config.lora)
        self._stats = EngineStats()
        self.stat_logger = None if config.disable_log_stats else StatLogger(ready.max_model_len)
        self.output_processor = OutputProcessor(
            self.tokenizer, self._stats, self.stat_logger, config.scheduler.stream_interval
        )

    def _core(self, attribute: str, instead: str) -> EngineCore:
        core = self.core_client.engine_core
        if core is None:
            raise RuntimeError(
                f"{type(self).__name__}.{attribute} is not here: the core runs in a process of its own. {instead}, or "
                "set enable_multiprocessing=False"
            )
        return core

    @property
    def engine_core(self) -> EngineCore:
        """The core, where it is in this process. Upstream's attribute of this name is the client: `core_client`."""
        return self._core("engine_core", "Ask it by `core_client.call_utility(method, ...)`")

    @property
    def scheduler(self) -> Any:
        """The core's scheduler, where it is in this process."""
        return self._core("scheduler", "`stats` has its counts").scheduler

    @property
    def vllm_config(self) -> EngineConfig:
        """Upstream's name of `config`."""
        return self.config

    @property
    def model_config(self) -> ModelConfig:
        """What is known of the model: nothing that was left open is still so."""
        return self.config.model_config

    @property
    def model(self) -> Any:
        """The model, where it is in this process."""
        instead = "`core_client.ready` and `default_sampling_params` say what a front end needs to know of it"
        return self._core("model", instead).model

    @property
    def sampler(self) -> Any:
        """The sampler, where it is in this process."""
        return self._core("sampler", "`SamplingParams` say what it does").sampler

    def get_tokenizer(self) -> Any:
        """The tokenizer in use, or None."""
        return self.tokenizer

    def make_request(
        self, request_id: str, processed: ProcessedInput, priority: int, arrival_time: float | None
    ) -> EngineCoreRequest:
        """What goes to the core.

        Raises:
            ValueError, TypeError: what is wrong with `request_id` or `priority`.
        """
        if not isinstance(request_id, str):
            raise TypeError(f"request_id must be a string, got {type(request_id).__name__}: {request_id!r}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ValueError(f"priority must be a whole number (lower runs first), got {priority!r}")
        if priority and self.config.scheduling_policy != "priority":
            warning_once(__name__, "priority counts under scheduling_policy='priority' alone; here it changes nothing")
        return EngineCoreRequest(
            request_id, processed.prompt_token_ids, processed.params,
            time.time() if arrival_time is None else arrival_time, processed.cache_salt, priority,
            processed.lora_request, mm_features=processed.mm_features,
        )  # fmt: skip

    def refuse_taken(self, request_ids: list[str]) -> None:
        """Raise ValueError if one of these ids belongs to a request that is still followed."""
        states = self.output_processor.request_states
        for request_id in request_ids:
            if request_id in states:
                raise ValueError(f"request_id {request_id!r} belongs to an unfinished request")


def _make_inproc_client(core: EngineCore, asyncio_mode: bool) -> EngineCoreClient:
    if not asyncio_mode:
        return InprocClient(core)
    from mini_vllm.engine.async_inproc_client import AsyncInprocClient

    return AsyncInprocClient(core)


def core_setup(config: EngineConfig, model: Any, with_labs: Any, tokenizer: Any) -> CoreSetup:
    """What a core in a process of its own is made from; `tokenizer`: what the caller gave, if anything."""
    from mini_vllm.engine.utils import CoreSetup
    from mini_vllm.structured_output.vocabulary import tokenizer_for_core

    return CoreSetup(config, model, with_labs, tokenizer_for_core(tokenizer))


def _make_mp_client(setup: CoreSetup, asyncio_mode: bool, shared_core: Any) -> EngineCoreClient:
    from mini_vllm.engine.async_mp_client import AsyncMPClient
    from mini_vllm.engine.dp_client import DPLBAsyncMPClient
    from mini_vllm.engine.sync_mp_client import SyncMPClient

    if has_replicas(setup.config):
        return DPLBAsyncMPClient(setup, shared_core)
    return AsyncMPClient(setup, shared_core) if asyncio_mode else SyncMPClient(setup)
