"""What goes with stages of a pipeline, and what does not. Upstream twin: `vllm/config/parallel.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mini_vllm.config.utils import whole_number
from mini_vllm.distributed.shared_memory import is_supported

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig


def check_pipeline(config: EngineConfig) -> None:
    """Look at `pipeline_parallel_size`, and refuse what is not served with more than one stage.

    Raises:
        ValueError: names the other argument and its value.

    Upstream: upstream/vllm/config/parallel.py:111 — "pipeline_parallel_size: int = 1".
    """
    whole_number("pipeline_parallel_size", config.pipeline_parallel_size, 1)
    if config.pipeline_parallel_size == 1:
        return
    drafts, backend = config.speculative_config, config.distributed_executor_backend
    for name, value, is_refused in (
        ("async_scheduling", config.async_scheduling, config.async_scheduling),
        ("speculative_config method", getattr(drafts, "method", None), drafts is not None and drafts.method != "ngram"),
        ("enable_lora", config.enable_lora, config.enable_lora),
        ("runner", config.runner, config.runner == "pooling"),
        ("kv_transfer_config", config.kv_transfer_config, config.kv_transfer_config is not None),
        ("kv_oracle", config.kv_oracle, bool(config.kv_oracle)),
        ("cudagraph_mode", config.cudagraph_mode, bool(config.resolved_cudagraph_mode)),
        ("device", config.device, config.device != "cpu"),
        ("distributed_executor_backend", backend, backend not in (None, "mp")),
    ):
        if is_refused:
            raise ValueError(_refusal(name, value, config.pipeline_parallel_size))
    if not is_supported():
        raise ValueError(
            f"pipeline_parallel_size must be 1 on this system (more needs Linux on x86-64), got "
            f"{config.pipeline_parallel_size}"
        )


def _refusal(name: str, value: Any, size: int) -> str:
    return f"{name}={value!r} is not served with stages: pipeline_parallel_size must be 1 with it, got {size}"
