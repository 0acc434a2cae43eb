"""A rank of a pipeline: some layers of the model, and the part of every KV cache group that belongs to them.

Upstream twin: `vllm/v1/worker/gpu_worker.py`, where the stages are branches of `Worker`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.core.kv_cache_groups import layer_name, layers_of
from mini_vllm.core.sched.output import GrammarOutput
from mini_vllm.distributed.pipeline_ranks import PipelineRanks
from mini_vllm.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.worker.model_runner import ModelRunner
from mini_vllm.worker.worker import Worker, WorkerParts

StepResult = tuple[ModelRunnerOutput, DraftTokenIds | None]
"""What the last stage answers: the tokens of a step, and drafts for the next."""


class PipelineWorker(Worker):
    """Args:
        ranks: of the engine; its `rank` is this worker's. The others: see `Worker`.

    Upstream: upstream/vllm/v1/worker/gpu_worker.py:109 — `Worker`.
    """

    def __init__(
        self,
        config: EngineConfig,
        resolved_model: ResolvedModel,
        ranks: PipelineRanks,
        parts: WorkerParts | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(config, resolved_model, ranks.tp, parts, progress)
        self.ranks, self.rank, self.pp = ranks, ranks.rank, ranks.state.pp

    def _load_weights(self) -> Any:
        from mini_vllm.model_loader.checkpoint import load_weights

        return load_weights(self.resolved_model, self.config, self._progress, self.group, self.pp)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """As `Worker.get_kv_cache_spec`, by the layers' numbers in the model."""
        specs = super().get_kv_cache_spec()
        first = self.model.start_layer
        return {layer_name(first + i): specs[layer_name(i)] for i in range(self.model.num_layers)}

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """As `Worker.initialize_from_config`, of each group the layers that are here, by their numbers here."""
        here = {layer_name(self.model.start_layer + i): layer_name(i) for i in range(self.model.num_layers)}
        groups = [
            KVCacheGroupSpec([here[name] for name in group.layer_names], group.kv_cache_spec)
            for group in layers_of(kv_cache_config.kv_cache_groups, here)
        ]
        super().initialize_from_config(replace(kv_cache_config, kv_cache_groups=groups))
        if not self.pp.is_last_rank:
            self.model_runner.drafts = None

    def _make_model_runner(self, sampler: Any, **settings: Any) -> ModelRunner:
        from mini_vllm.worker.pipeline_model_runner import PipelineModelRunner

        return PipelineModelRunner(self.model, sampler, ranks=self.ranks, **settings)

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> StepResult | None:  # type: ignore[override]
        """The tokens of a step, and drafts; None on a stage that does not sample.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:4323 — "if self.execute_model_state is None:".
        """
        if not self.pp.is_last_rank:
            return None
        output = super().sample_tokens(grammar_output)
        return output, None if self.model_runner.drafts is None else self.take_draft_token_ids()
