"""One rank: its part of the model, its part of the KV cache, and the runner that computes with both.

    init_device -> load_model -> get_kv_cache_spec -> initialize_from_config -> compile_or_warm_up_model
    execute_model -> sample_tokens, again and again

Upstream twins: `vllm/v1/worker/gpu_worker.py` and `vllm/v1/worker/worker_base.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.core.kv_cache_groups import DRAFT_PREFIX, get_kv_cache_spec
from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.kv_cache_interface import KVCacheConfig, KVCacheSpec
from mini_vllm.kv_oracle import KVOracle
from mini_vllm.layers.batch_invariant import require_batch_invariant, vllm_is_batch_invariant
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.sample.logits_processor import build_logitsprocs, has_custom_logitsprocs
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker.encoder_runner import make_encoder
from mini_vllm.worker.kv_connector import make_kv_connector
from mini_vllm.worker.model_runner import ModelRunner

R = TypeVar("R")


@dataclass
class WorkerParts:
    """What a worker is put together from.

    Attributes:
        sampler: a `Sampler`; None: a new one. attention: backend class; None: the one that `attention_backend` names.
        model: (model, its folder or None, config) -> the model that is served; None: the one that was loaded.
        vision_tower: of the same -> what stands in the place of its `embed_multimodal`; None: its own.
        dp_group: the ranks of all replicas, where these hand each other rows in the middle of a step; None: no need.
    """

    sampler: Any = None
    attention: Any = None
    model: Any = None
    vision_tower: Any = None
    dp_group: DataParallelGroup | None = None


class Worker:
    """Args:
        config: checked engine arguments.
        resolved_model: what to load; or a finished model, where there is one rank.
        group: the ranks, where there is more than one; its `rank` is this worker's.
        parts: by default ours.
        progress: called with (tensors done, tensors in all) while the weights are read.

    Attributes:
        model, draft_model: after `load_model`; the second is None unless weights make drafts. model_runner: after
            `initialize_from_config`; upstream makes it with the device.

    Upstream: upstream/vllm/v1/worker/gpu_worker.py:109 — `Worker`.
    """

    model: Any = None
    draft_model: Any = None
    lora_manager: Any = None
    model_runner: ModelRunner

    def __init__(
        self,
        config: EngineConfig,
        resolved_model: ResolvedModel,
        group: TensorParallelGroup | None = None,
        parts: WorkerParts | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.config, self.resolved_model, self.group = config, resolved_model, group
        self.parts = parts or WorkerParts()
        self.rank = 0 if group is None else group.rank
        self._progress = progress

    def init_device(self) -> None:
        """Nothing to be done for a CPU; a GPU is chosen here.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:236 — `Worker.init_device`.
        """

    def load_model(self) -> None:
        """Read this rank's weights.

        Raises:
            FileNotFoundError, ValueError: as `load_model` of `model_loader/default_loader.py`.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:335 — `Worker.load_model`.
        """
        folder = None
        if self.resolved_model.hf_config is None:
            model = self.resolved_model.model
        else:
            folder, model = self.resolved_model.model, self._load_weights()
        if vllm_is_batch_invariant():
            require_batch_invariant(model)
        self.model = model if self.parts.model is None else self.parts.model(model, folder, self.config)
        if self.config.lora is not None:  # before anything holds on to its projections
            from mini_vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

            self.lora_manager = LRUCacheWorkerLoRAManager(self.model, self.config.lora)
        drafts = self.config.speculative_config
        if drafts is not None and drafts.has_weights:
            from mini_vllm.worker.draft_runner import load_drafter

            self.draft_model = load_drafter(self.model, self.resolved_model, self.config, self.group)

    def _load_weights(self) -> Any:
        from mini_vllm.model_loader.checkpoint import load_weights

        return load_weights(self.resolved_model, self.config, self._progress, self.group)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """What each layer of this rank keeps, by the layer's name; empty for a model without layers.

        Upstream: upstream/vllm/v1/worker/worker_base.py:98 — `WorkerBase.get_kv_cache_spec`.
        """
        size, dtype = self.config.block_size, self.config.kv_cache_dtype
        specs = get_kv_cache_spec(self.model, size, dtype, self.config, self.resolved_model.lengths)
        if self.draft_model is not None and self.draft_model.num_layers:
            of_drafter = get_kv_cache_spec(self.draft_model, size, dtype)
            specs.update({DRAFT_PREFIX + name: spec for name, spec in of_drafter.items()})
        return specs

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Make the KV cache, as many blocks as the config says, and the runner.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:543 — `Worker.initialize_from_config`.
        """
        c = self.config
        assert c.max_num_seqs is not None
        sampler = self.parts.sampler or Sampler()
        sampler.logprobs_mode, sampler.use_fp64_gumbel = c.logprobs_mode, c.use_fp64_gumbel
        self.model_runner = self._make_model_runner(
            sampler,
            num_blocks=kv_cache_config.num_blocks,
            block_size=c.block_size,
            max_num_seqs=c.max_num_seqs,
            max_num_batched_tokens=c.max_num_batched_tokens,
            max_model_len=c.resolve_max_model_len(*self.resolved_model.lengths),
            seed=c.seed,
            kv_cache_dtype=c.kv_cache_dtype,
            attention_backend=self.parts.attention or c.platform.get_attn_backend_cls(c.attention_backend),
            group=self.group,
            enforce_eager=c.enforce_eager,
            kv_cache_config=kv_cache_config,
            platform=c.platform,
            kv_connector=make_kv_connector(self, kv_cache_config),
            encoder=make_encoder(self.model, self.parts.vision_tower, self.resolved_model, c),
        )
        self.model_runner.lora_manager = self.lora_manager
        if c.speculative_config is not None:
            from mini_vllm.worker.draft_runner import DraftRunner

            self.model_runner.drafts = DraftRunner(self.model_runner, c, self.draft_model)
        toy = self.model.num_layers == 0 and c.runner_type == "generate" and c.kv_transfer_config is None
        watch = toy if c.kv_oracle is None else c.kv_oracle
        custom = c.model_config.logits_processors
        if has_custom_logitsprocs(custom):
            self.model_runner.logitsprocs = build_logitsprocs(c, custom_logitsprocs=custom)
        self.model_runner.kv_oracle = KVOracle(kv_cache_config.num_blocks, c.block_size) if watch else None

    def _make_model_runner(self, sampler: Any, **settings: Any) -> ModelRunner:
        """The one hook of pooling, and of engines that encode for others."""
        if self.config.ec_transfer_config is not None and self.config.ec_transfer_config.is_ec_only_producer:
            from mini_vllm.worker.encoder_model_runner import EncoderModelRunner

            return EncoderModelRunner(self.model, sampler, **settings)
        if self.config.runner_type == "generate":
            return ModelRunner(self.model, sampler, **settings)
        from mini_vllm.worker.pooling_model_runner import PoolingModelRunner

        return PoolingModelRunner(self.model, sampler, **settings)

    def compile_or_warm_up_model(self) -> None:
        """Capture the graphs, where some are wanted.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:572 — `Worker.compile_or_warm_up_model`.
        """
        if not self.config.resolved_cudagraph_mode or self.model_runner.encoder is not None:
            return  # a graph takes ids, not embeddings
        from mini_vllm.compilation.cudagraph.manager import capture_graphs

        self.model_runner.graphs = capture_graphs(self.model_runner, self.config)

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Compute what the plan says; the logits wait in the runner.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:781 — `Worker.execute_model`.
        """
        run, kv_connector = self.model_runner.execute_model, self.model_runner.kv_connector
        run(scheduler_output) if kv_connector is None else kv_connector.execute_model(run, scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> ModelRunnerOutput:
        """Sample from the logits of `execute_model`; the same tokens on every rank, as each has all logits.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:775 — `Worker.sample_tokens`.
        """
        output, kv_connector = self.model_runner.sample_tokens(grammar_output), self.model_runner.kv_connector
        return output if kv_connector is None else kv_connector.report(output)

    def take_draft_token_ids(self) -> DraftTokenIds:
        """Drafts for the next step, of an engine that makes them.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:871 — `Worker.take_draft_token_ids`.
        """
        assert self.model_runner.drafts is not None
        return self.model_runner.drafts.take_draft_token_ids()

    def get_stats(self) -> tuple[Any, Any]:
        """What only the worker sees: the graphs' `CUDAGraphStats` and the model's `ExpertLoad`, each None without."""
        graphs = self.model_runner.graphs
        return graphs.stats if graphs else None, getattr(self.model, "expert_load", None)

    def get_model(self) -> Any:
        """This rank's part. Upstream: upstream/vllm/v1/worker/worker_base.py:125 — `WorkerBase.get_model`."""
        return self.model

    def apply_model(self, fn: Callable[[Any], R]) -> R:
        """`fn` of this rank's part of the model.

        Upstream: upstream/vllm/v1/worker/worker_base.py:128 — `WorkerBase.apply_model`.
        """
        return fn(self.model)

    def check_health(self) -> None:
        """An answer is enough."""

    def shutdown(self) -> None:
        """Let a KV connector go; nothing else is held that does not go with the process or the object."""
        if (connector := getattr(getattr(self, "model_runner", None), "kv_connector", None)) is not None:
            connector.kv_connector.shutdown()
