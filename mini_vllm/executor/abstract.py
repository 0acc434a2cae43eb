"""Above the workers, below the core: what has to be done once for each rank.

    EngineCore -> Executor -> Worker -> ModelRunner    one rank, in this process (`uniproc_executor.py`)
                           -> Worker -> ModelRunner    more: those in processes (`multiproc_executor.py`), or actors

Upstream twin: `vllm/v1/executor/abstract.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.executor.pending_output import ComputedOutput, PendingOutput
from mini_vllm.kv_cache_interface import KVCacheConfig, KVCacheSpec
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.utils.checks import shown
from mini_vllm.worker.worker import WorkerParts

Method = str | Callable[..., Any]
"""Name of a method of `Worker`, or a function that gets the worker as its first argument."""


class Executor(ABC):
    """Owns the workers and speaks to all of them at once.

    Args:
        config: checked engine arguments.
        resolved_model: what the workers load.
        parts: of the workers; by default ours.

    Attributes:
        is_failed: the workers are gone for good; every call raises the error that says why.

    Upstream: upstream/vllm/v1/executor/abstract.py:37 — `Executor`.
    """

    is_failed = False

    @staticmethod
    def get_class(config: EngineConfig) -> type[Executor]:
        """The class that `distributed_executor_backend` names; by default "uni" for one rank, "mp" for more.

        Raises:
            ValueError, TypeError: an unknown name, or a class that is no `Executor`.

        Upstream: upstream/vllm/v1/executor/abstract.py:48 — `Executor.get_class`.
        """
        backend = config.distributed_executor_backend
        if backend is None:
            backend = "mp" if config.tensor_parallel_size * config.pipeline_parallel_size > 1 else "uni"
        if backend == "uni":
            from mini_vllm.executor.uniproc_executor import UniProcExecutor

            return UniProcExecutor
        if backend == "ray":
            from mini_vllm.executor import ray_executor

            ray_executor.assert_ray_available()
            stages = config.pipeline_parallel_size > 1
            return ray_executor.RayPipelineExecutor if stages else ray_executor.RayDistributedExecutor
        if backend == "mp" and config.pipeline_parallel_size > 1:
            from mini_vllm.executor.pipeline_executor import PipelineExecutor

            return PipelineExecutor
        if backend == "mp":
            from mini_vllm.executor.multiproc_executor import MultiprocExecutor

            return MultiprocExecutor
        if isinstance(backend, str) and "." in backend:
            module, _, name = backend.rpartition(".")
            try:
                backend = getattr(import_module(module), name)
            except (ImportError, AttributeError) as error:
                raise ValueError(f"distributed_executor_backend={backend!r} cannot be imported: {error}") from None
        elif isinstance(backend, str):
            raise ValueError(
                f"distributed_executor_backend must be 'uni', 'mp', 'ray' or a class, got {shown(backend)}"
            )
        if not (isinstance(backend, type) and issubclass(backend, Executor)):
            raise TypeError(f"distributed_executor_backend must be a subclass of Executor, got {backend!r}")
        return backend

    def __init__(self, config: EngineConfig, resolved_model: ResolvedModel, parts: WorkerParts | None = None) -> None:
        self.config, self.resolved_model, self.parts = config, resolved_model, parts or WorkerParts()
        self._init_executor()

    @abstractmethod
    def _init_executor(self) -> None:
        """Make the workers, each with its device and its weights."""

    @property
    def driver_worker(self) -> Any:
        """The worker of rank 0, where it is in this process.

        Raises:
            RuntimeError: they are elsewhere.
        """
        raise RuntimeError(
            f"no worker of {type(self).__name__} is in this process, so that model and model_runner cannot be looked "
            "into: ask the workers by collective_rpc or apply_model"
        )

    def get_kv_cache_specs(self) -> list[dict[str, KVCacheSpec]]:
        """What the layers of each rank keep.

        Upstream: upstream/vllm/v1/executor/abstract.py:149 — `Executor.get_kv_cache_specs`.
        """
        return self.collective_rpc("get_kv_cache_spec")

    def determine_available_memory(self) -> int | None:
        """Bytes for the KV caches of all ranks together: what weights and all else that the ranks' processes hold leave
        of `gpu_memory_utilization`. None: that is unset, or the number of blocks is.

        Raises:
            ValueError: nothing is left, or less is free.

        Upstream: upstream/vllm/v1/executor/abstract.py:146 — `Executor.determine_available_memory`. Each rank has a
        share of its own there, and takes a step before it counts; here step and scratch come on top.
        """
        share = self.config.gpu_memory_utilization
        if share is None or self.config.num_blocks is not None:
            return None
        return self.config.platform.memory_for_kv_cache(share, self.collective_rpc)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Make the KV caches, and whatever has to be ready before the first step.

        Upstream: upstream/vllm/v1/executor/abstract.py:118 — `Executor.initialize_from_config`.
        """
        self.collective_rpc("initialize_from_config", args=(kv_cache_config,))
        self.collective_rpc("compile_or_warm_up_model")

    @abstractmethod
    def collective_rpc(
        self, method: Method, timeout: float | None = None, args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Call a method of every worker.

        Args:
            method: see `Method`.
            timeout: seconds to wait at most; None: as long as it takes.

        Returns:
            What each returned, by rank.

        Raises:
            RuntimeError: a worker failed or died; which one, and how. TimeoutError: names who has not answered.

        Upstream: upstream/vllm/v1/executor/abstract.py:153 — `Executor.collective_rpc`.
        """

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Have all ranks compute a step.

        Upstream: upstream/vllm/v1/executor/abstract.py:221 — `Executor.execute_model`.
        """
        self.collective_rpc("execute_model", args=(scheduler_output,))

    def sample_tokens(self, grammar_output: GrammarOutput | None = None) -> ModelRunnerOutput:
        """What came out of the step. grammar_output: which tokens some of its rows may have.

        Upstream: upstream/vllm/v1/executor/abstract.py:241 — `Executor.sample_tokens`.
        """
        output: ModelRunnerOutput = self.collective_rpc("sample_tokens", args=(grammar_output,))[0]
        return output

    def sample_tokens_non_block(self, grammar_output: GrammarOutput | None = None) -> PendingOutput:
        """As `sample_tokens`, without waiting where other ranks sample; upstream says `non_block=True`."""
        return ComputedOutput(self.sample_tokens(grammar_output))

    def execute_dummy_batch(self) -> None:
        """Have all ranks take part in a step of other replicas, without work of their own.

        Upstream: upstream/vllm/v1/executor/abstract.py:249 — `Executor.execute_dummy_batch`.
        """
        self.collective_rpc("execute_dummy_batch")

    @property
    def max_concurrent_batches(self) -> int:
        """Steps that may be in flight at once.

        Upstream: upstream/vllm/v1/executor/abstract.py:257 — `Executor.max_concurrent_batches`.
        """
        return 2 if self.config.async_scheduling else 1

    def take_draft_token_ids(self) -> DraftTokenIds:
        """Drafts for the next step; every rank has made the same.

        Upstream: upstream/vllm/v1/executor/abstract.py:252 — `Executor.take_draft_token_ids`.
        """
        return self.driver_worker.take_draft_token_ids()

    def get_stats(self) -> tuple[Any, Any]:
        """See `Worker.get_stats`; those of the first rank."""
        stats: tuple[Any, Any] = self.collective_rpc("get_stats")[0]
        return stats

    @abstractmethod
    def check_health(self) -> None:
        """Raises RuntimeError where the workers cannot compute any more."""

    def shutdown(self) -> None:
        """Let the workers go."""
        self.collective_rpc("shutdown")
