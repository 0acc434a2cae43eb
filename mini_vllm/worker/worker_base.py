"""A worker, made: what every process does first that holds one. Upstream twin: `vllm/v1/worker/worker_base.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.plugins import load_general_plugins

if TYPE_CHECKING:
    from mini_vllm.distributed.pipeline_ranks import PipelineRanks


def make_worker(
    config: EngineConfig,
    resolved_model: ResolvedModel,
    group: TensorParallelGroup | PipelineRanks | None = None,
    **settings: Any,
) -> Any:
    """The worker of this process, of the class that the platform names. Every executor's way to one, whatever starts
    the process: before it, the general plugins are loaded there.

    Args:
        config, resolved_model, group: see `Worker`; with stages, see `PipelineWorker`. settings: `parts` and
            `progress`, see there.

    Raises:
        TypeError: the platform names something that is no class. Besides, whatever a plugin raises.

    Upstream: upstream/vllm/v1/worker/worker_base.py:230 — `WorkerWrapperBase.init_worker`.
    """
    load_general_plugins()
    worker_class = config.platform.get_worker_cls()
    if not isinstance(worker_class, type):
        name = type(config.platform).__name__
        raise TypeError(f"{name}.get_worker_cls must return a class, got {worker_class!r}")
    if (parts := settings.get("parts")) is not None and parts.dp_group is not None:
        from mini_vllm.worker.data_parallel_worker import DataParallelWorker as worker_class
    elif config.pipeline_parallel_size > 1:
        from mini_vllm.worker.pipeline_worker import PipelineWorker as worker_class
    return worker_class(config, resolved_model, group, **settings)
