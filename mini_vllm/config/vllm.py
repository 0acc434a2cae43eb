"""All settings of an engine together. Upstream twins: `vllm/config/vllm.py`, `vllm/engine/arg_utils.py`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from mini_vllm.attention.backends.registry import get_attention_backend
from mini_vllm.config.cache import CacheConfig
from mini_vllm.config.compilation import CUDAGraphMode, check_capture_sizes, resolve_capture_sizes
from mini_vllm.config.ec_transfer import ECTransferConfig
from mini_vllm.config.kv_events import KVEventsConfig
from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.config.load import LoadConfig
from mini_vllm.config.lora import LoRAConfig
from mini_vllm.config.model import COMPUTE_DTYPES, ModelConfig
from mini_vllm.config.modes import check_modes
from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.config.parallel import check_executor, check_parallel
from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.config.reasoning import ReasoningConfig
from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.config.utils import flag, whole_number
from mini_vllm.layers.batch_invariant import vllm_is_batch_invariant
from mini_vllm.platforms import default_device, get_platform
from mini_vllm.platforms.interface import Platform
from mini_vllm.utils.checks import shown
from mini_vllm.utils.mem_utils import require_memory

DTYPES = COMPUTE_DTYPES
BYTES_PER_BLOCK = 160
"""What the bookkeeping of a block takes, whatever the block holds."""


@dataclass
class EngineConfig:
    """All engine arguments, as `LLM(...)` and `LLMEngine(...)` take them.

    `quantization`: how weights are stored, "int8", "int4", "fp8" or "nf4", made while a float checkpoint loads; a
    quantized checkpoint says it itself. `quantization_config`: settings of it, e.g. {"group_size": 32}.
    `cudagraph_mode`: simulated CUDA graphs (`compilation/`). Upstream's default is FULL_AND_PIECEWISE; here, where
    nothing is launched, NONE. `enforce_eager` makes it NONE whatever is given, as upstream, and runs the model file as
    it stands instead of its compiled form (`compilation/cpu_fused.py`). The environment variable
    VLLM_BATCH_INVARIANT=1 makes the logits of a request independent of its neighbours, bit for bit, and implies it
    (`layers/batch_invariant.py`).
    `kv_events_config`: whether what the prefix cache gains and loses is published (`config/kv_events.py`).
    `kv_transfer_config`, `ec_transfer_config`: who brings keys and values, or encoder outputs, from elsewhere
    (`config/kv_transfer.py`, `config/ec_transfer.py`); such objects after the checks, or None.
    `logits_processors`: custom ones, classes or "module:Class" (`sample/logits_processor/`). `reasoning_config`: what
    marks a model's thinking. `runner`, `convert`, `pooler_config`: whether tokens or vectors come out, and how.
    `structured_outputs_config`: how grammars are made (`config/structured_outputs.py`).
    `enable_lora`, `max_loras`, `max_lora_rank`, `max_cpu_loras`, `lora_target_modules`: buffers for adapters
    (`config/lora.py`).
    `multimodal_config`: what a prompt may have beside its text (`config/multimodal.py`).
    `speculative_config`: who guesses tokens ahead (`config/speculative.py`); a `SpeculativeConfig` afterwards, or None.
    `tensor_parallel_size`: processes that share every layer, this one included. `pipeline_parallel_size`: stages, which
    have some of the layers each (`config/parallel.py`), of so many processes. `data_parallel_size`: cores with all of
    these each (`engine/dp_client.py`); `data_parallel_backend`: processes of this machine, "mp", or actors of a Ray
    cluster, "ray" (`engine/core_actors.py`). `enable_expert_parallel`: of a mixture, processes hold whole experts; by
    default a share of each. `distributed_executor_backend`: who owns them (`executor/`), "uni", "mp", "ray" or a class;
    by default what the ranks need. `execute_model_timeout_seconds`: a step in which no rank gets on for so long
    is given up (upstream: VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, 300). `nnodes`, `node_rank`, `master_addr`,
    `master_port`: machines that ranks are on, which of them this is, where they meet (`executor/node_workers.py`);
    `distributed_timeout_seconds`: how long they wait for each other. `device`: "cpu", "cuda", "torch", which is the
    code for "cuda" on a CPU, or the name of a platform plug-in; by default the plug-in whose device is there.
    `performance_mode`: "throughput" doubles the limits of a step that are not given, "interactivity" captures graphs of
    every small size. `optimization_level`: 0 is `enforce_eager` without graphs, 1 to 3 are one.
    """

    block_size: int = CacheConfig.block_size
    num_blocks: int | None = CacheConfig.num_blocks
    enable_prefix_caching: bool = CacheConfig.enable_prefix_caching
    prefix_caching_hash_algo: str | None = CacheConfig.prefix_caching_hash_algo
    kv_cache_memory_bytes: int = CacheConfig.kv_cache_memory_bytes
    gpu_memory_utilization: float | None = CacheConfig.gpu_memory_utilization
    kv_cache_dtype: str = CacheConfig.kv_cache_dtype
    mamba_cache_mode: str = CacheConfig.mamba_cache_mode
    kv_offloading_size: float | None = CacheConfig.kv_offloading_size
    kv_offloading_backend: str = CacheConfig.kv_offloading_backend
    max_num_batched_tokens: int = SchedulerConfig.max_num_batched_tokens
    max_num_seqs: int | None = SchedulerConfig.max_num_seqs
    long_prefill_token_threshold: int = SchedulerConfig.long_prefill_token_threshold
    enable_chunked_prefill: bool = SchedulerConfig.enable_chunked_prefill
    scheduler_reserve_full_isl: bool = SchedulerConfig.scheduler_reserve_full_isl
    scheduling_policy: str = SchedulerConfig.scheduling_policy
    async_scheduling: bool = SchedulerConfig.async_scheduling
    disable_hybrid_kv_cache_manager: bool = SchedulerConfig.disable_hybrid_kv_cache_manager
    stream_interval: int = SchedulerConfig.stream_interval
    disable_chunked_mm_input: bool = SchedulerConfig.disable_chunked_mm_input
    max_model_len: int | None = ModelConfig.max_model_len
    dtype: str = ModelConfig.dtype
    quantization: str | None = ModelConfig.quantization
    quantization_config: dict[str, Any] | None = ModelConfig.quantization_config
    attention_backend: str | None = None
    enforce_eager: bool = ModelConfig.enforce_eager
    cudagraph_mode: str = "NONE"
    cudagraph_capture_sizes: list[int] | None = None
    max_cudagraph_capture_size: int | None = None
    seed: int = ModelConfig.seed
    kv_oracle: bool | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    data_parallel_backend: str = "mp"
    enable_expert_parallel: bool = False
    expert_placement_strategy: str = "linear"
    all2all_backend: str = "allgather_reducescatter"
    distributed_executor_backend: Any = None
    execute_model_timeout_seconds: float = 60.0
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    distributed_timeout_seconds: float = 1800.0
    kv_events_config: KVEventsConfig | dict[str, Any] | None = None
    kv_transfer_config: Any = None
    ec_transfer_config: Any = None
    structured_outputs_config: StructuredOutputsConfig | dict[str, Any] | None = None
    speculative_config: Any = None
    multimodal_config: MultiModalConfig | dict[str, Any] | None = None
    runner: str = ModelConfig.runner
    convert: str = ModelConfig.convert
    pooler_config: Any = None
    reasoning_config: ReasoningConfig | dict[str, Any] | None = None
    enable_lora: bool = False
    max_loras: int | None = None
    max_lora_rank: int | None = None
    max_cpu_loras: int | None = None
    lora_dtype: str | None = None
    lora_target_modules: list[str] | None = None
    fully_sharded_loras: bool = False
    max_logprobs: int = ModelConfig.max_logprobs
    logprobs_mode: str = ModelConfig.logprobs_mode
    use_fp64_gumbel: bool = ModelConfig.use_fp64_gumbel
    logits_processors: Any = ModelConfig.logits_processors
    load_format: str = LoadConfig.load_format
    disable_log_stats: bool = False
    generation_config: str = ModelConfig.generation_config
    override_generation_config: dict[str, Any] = field(default_factory=dict)
    skip_tokenizer_init: bool = ModelConfig.skip_tokenizer_init
    tokenizer_mode: str = ModelConfig.tokenizer_mode
    trust_remote_code: bool = ModelConfig.trust_remote_code
    revision: str | None = ModelConfig.revision
    served_model_name: str | list[str] | None = ModelConfig.served_model_name
    device: str = ""
    download_dir: str | None = LoadConfig.download_dir
    hf_token: bool | str | None = ModelConfig.hf_token
    performance_mode: str = "balanced"
    optimization_level: int = 2
    shutdown_timeout: float = 0
    cudagraph_metrics: bool = False

    def __post_init__(self) -> None:
        self.device = self.device or default_device()
        if self.async_scheduling is None:
            self.async_scheduling = self.platform.default_async_scheduling
        for each in fields(self):
            if getattr(self, each.name) is None:  # None means the default, as upstream
                factory = each.default_factory
                setattr(self, each.name, each.default if factory is MISSING else factory())
        self.cache = CacheConfig(**{f.name: getattr(self, f.name) for f in fields(CacheConfig)})
        self.kv_transfer_config = KVTransferConfig.of_engine(self)
        self.ec_transfer_config = ECTransferConfig.of_engine(self)
        self.scheduler = SchedulerConfig(
            **{f.name: getattr(self, f.name) for f in fields(SchedulerConfig) if hasattr(self, f.name)}
        )
        self.kv_events = KVEventsConfig.of(self.kv_events_config)
        self.multimodal = MultiModalConfig.of(self.multimodal_config)
        self.structured_outputs = StructuredOutputsConfig.of(self.structured_outputs_config)
        self.model_config = ModelConfig(**{f.name: getattr(self, f.name) for f in fields(ModelConfig)})
        self.pooler_config = PoolerConfig.of(self.pooler_config)
        self.runner_type, self.convert_type = "generate", "none"  # until the model is known: `resolve_runner`
        self.supported_tasks: tuple[str, ...] = ("generate",)
        self.load_config = LoadConfig(self.load_format, self.download_dir)
        self.reasoning = ReasoningConfig.of(self.reasoning_config)
        self.max_num_seqs = self.scheduler.max_num_seqs
        self.dtype = self.platform.compute_dtype(self.model_config)
        flag("disable_log_stats", self.disable_log_stats)
        check_modes(self)
        if self.kv_oracle is not None:
            flag("kv_oracle", self.kv_oracle)
        whole_number("tensor_parallel_size", self.tensor_parallel_size, 1)
        check_executor(self)
        self.enforce_eager = self.enforce_eager or vllm_is_batch_invariant()
        self.speculative_config = drafts = SpeculativeConfig.of(self.speculative_config)
        if drafts is not None:
            drafts.check_engine(self.async_scheduling, self.tensor_parallel_size)
        self.lora = LoRAConfig.of(
            self.enable_lora, max_loras=self.max_loras, max_lora_rank=self.max_lora_rank,
            max_cpu_loras=self.max_cpu_loras, lora_dtype=self.lora_dtype, target_modules=self.lora_target_modules,
            fully_sharded_loras=self.fully_sharded_loras,
        )  # fmt: skip
        self.structured_outputs.check_engine(self.async_scheduling, drafts is not None)
        if self.attention_backend is not None:
            get_attention_backend(self.attention_backend)
        self._check_cudagraphs()
        self.platform.check_and_update_config(self)
        check_parallel(self)

    @property
    def platform(self) -> Platform:
        """What `device` names. Raises ValueError where this machine has none."""
        return get_platform(self.device)

    def _check_cudagraphs(self) -> None:
        """Sizes become a list in ascending order, empty without graphs."""
        mode = CUDAGraphMode.from_name(self.cudagraph_mode)
        self.resolved_cudagraph_mode = CUDAGraphMode.NONE if self.enforce_eager else mode
        self.resolved_capture_sizes: list[int] = []
        check_capture_sizes(self.cudagraph_capture_sizes, self.max_cudagraph_capture_size)
        if not self.resolved_cudagraph_mode:
            return
        assert self.max_num_seqs is not None
        self.resolved_capture_sizes = resolve_capture_sizes(
            self.cudagraph_capture_sizes,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_size=self.max_cudagraph_capture_size,
            uniform_decode_query_len=self.uniform_decode_query_len,
            every_small_size=self.performance_mode == "interactivity",
        )

    @property
    def uniform_decode_query_len(self) -> int:
        """Tokens of a decoding request in a step: 1, and its drafts.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:805 — "self.uniform_decode_query_len =".
        """
        return 1 + (0 if self.speculative_config is None else self.speculative_config.num_speculative_tokens)

    @classmethod
    def from_args(cls, **args: Any) -> EngineConfig:
        """Build from keyword arguments, as `EngineArgs` reads them."""
        from mini_vllm.engine.arg_utils import EngineArgs

        return EngineArgs(**args).create_engine_config()

    def resolve_max_model_len(self, model_max_len: int, default: int | None = None) -> int:
        """The context length in tokens: the one asked for, else `default`, else the model's."""
        length = (default or model_max_len) if self.max_model_len is None else self.max_model_len
        if length > model_max_len:
            raise ValueError(f"max_model_len must be at most the model's context of {model_max_len}, got {length}")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < length:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_model_len ({length}) when enable_chunked_prefill is "
                f"False, got {self.max_num_batched_tokens}"
            )
        return length

    def resolve_num_blocks(
        self, kv_bytes_per_block: int, max_model_len: int, needed_blocks: int | None = None, memory: int | None = None
    ) -> int:
        """Blocks in the pool, the null block included.

        `needed_blocks`: for one sequence of `max_model_len` tokens and the null block; by default one block for every
        `block_size` tokens. `memory`: bytes for the pool; by default `kv_cache_memory_bytes`.

        Raises:
            ValueError: the memory given does not hold one sequence of `max_model_len` tokens. Upstream refuses to
                start in the same case: upstream/vllm/v1/core/kv_cache_utils.py:691 — `_check_enough_kv_cache_memory`.
        """
        needed = -(-max_model_len // self.block_size) + 1 if needed_blocks is None else needed_blocks
        seats = f"max_num_seqs={shown(self.max_num_seqs)} with max_model_len={shown(max_model_len)}"
        require_memory(seats, (self.max_num_seqs or 1) * max_model_len * 8, "ask for fewer or shorter requests")
        if self.num_blocks is not None:
            size = self.num_blocks * (kv_bytes_per_block + BYTES_PER_BLOCK)
            require_memory(f"num_blocks={shown(self.num_blocks)}", size, "ask for fewer blocks")
            return self.num_blocks
        if kv_bytes_per_block == 0:
            oracle = max(needed, 1024) * self.block_size * 8
            require_memory(f"block_size={shown(self.block_size)}", oracle, "take a smaller one")
            return max(needed, 1024)
        memory = self.kv_cache_memory_bytes if memory is None else memory
        num_blocks = memory // kv_bytes_per_block
        if num_blocks < needed:
            most = max(num_blocks - 1, 0) * self.block_size
            shorter = f" or set max_model_len to at most {most}" if most else f" or lower block_size={self.block_size}"
            share = self.gpu_memory_utilization
            named = f"kv_cache_memory_bytes={memory}"
            if share is not None:
                named = f"gpu_memory_utilization={share} leaves {memory} bytes for the KV cache, which"
            raise ValueError(
                f"{named} holds {most} tokens, but max_model_len is {max_model_len}: "
                f"allow {needed * kv_bytes_per_block} bytes{shorter}"
            )
        named = f"kv_cache_memory_bytes={shown(memory)}"
        in_here = kv_bytes_per_block if self.platform.kv_cache_in_host_memory else 0
        require_memory(named, num_blocks * (in_here + BYTES_PER_BLOCK), "ask for less")
        return num_blocks
