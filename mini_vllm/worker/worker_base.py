"""A worker, made: what every process does first that holds one. Upstream twin: `vllm/v1/worker/worker_base.py`."""

from __future__ import annotations

from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.plugins import load_general_plugins


def make_worker(
    config: EngineConfig, resolved_model: ResolvedModel, group: TensorParallelGroup | None = None, **settings: Any
) -> Any:
    """The worker of this process, of the class that the platform names. Every executor's way to one, whatever starts
    the process: before it, the general plugins are loaded there.

    Args:
        config, resolved_model, group: see `Worker`. settings: `parts` and `progress`, see there.

    Raises:
        TypeError: the platform names something that is no class. Besides, whatever a plugin raises.

    Upstream: upstream/vllm/v1/worker/worker_base.py:230 — `WorkerWrapperBase.init_worker`.
    """
    load_general_plugins()
    worker_class = config.platform.get_worker_cls()
    if not isinstance(worker_class, type):
        name = type(config.platform).__name__
        raise TypeError(f"{name}.get_worker_cls must return a class, got {worker_class!r}")
    return worker_class(config, resolved_model, group, **settings)
