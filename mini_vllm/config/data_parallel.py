"""What goes with several replicas, and what does not. Upstream: `upstream/vllm/config/parallel.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mini_vllm.config.utils import whole_number
from mini_vllm.utils.checks import shown
from mini_vllm.utils.mem_utils import require_memory

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig

_PROCESS_BYTES = 24 << 20
"""What a process takes that has done no more than import numpy."""


def check_data_parallel(config: EngineConfig) -> None:
    """Look at `data_parallel_size`, refuse what replicas cannot do, and more of them than this machine could hold.

    Upstream: upstream/vllm/config/parallel.py:117 — "data_parallel_size: int = 1".
    """
    whole_number("data_parallel_size", size := config.data_parallel_size, 1)
    if not has_replicas(config):
        return
    for name, value, is_refused in (
        ("kv_transfer_config", config.kv_transfer_config, config.kv_transfer_config is not None),
        ("nnodes", config.nnodes, config.nnodes > 1),
        ("ec_transfer_config", config.ec_transfer_config, config.ec_transfer_config is not None),
        ("device", config.device, config.device not in ("cpu", "torch")),
        ("gpu_memory_utilization", config.gpu_memory_utilization, config.gpu_memory_utilization is not None),
    ):
        if is_refused:
            alone = "data_parallel_size must be 1, and data_parallel_backend 'mp', with it"
            raise ValueError(f"{name}={shown(value, 60)} is not served by replicas: {alone}")
    check_memory(config, size)


def check_backend(config: EngineConfig) -> None:
    """Look at who starts the replicas. Where it is Ray, the ranks of each are Ray's too, if it was not said otherwise.

    Upstream: upstream/vllm/config/parallel.py:133 — "data_parallel_backend:", and :859, where ranks follow.
    """
    backend = config.data_parallel_backend
    if backend not in ("mp", "ray"):
        raise ValueError(f"data_parallel_backend must be 'mp' or 'ray', got {shown(backend)}")
    if backend == "ray" and config.nnodes != 1:
        raise ValueError(f"nnodes={shown(config.nnodes)} needs data_parallel_backend='mp', got 'ray'")
    if backend == "ray" and config.distributed_executor_backend is None:
        names = "tensor_parallel_size", "pipeline_parallel_size"
        sizes = [whole_number(name, getattr(config, name), 1) for name in names]
        config.distributed_executor_backend = "ray" if max(sizes) > 1 else None


def has_replicas(config: EngineConfig) -> bool:
    """Whether there is a router in front of the cores: with several of them, or with one that Ray has placed."""
    return config.data_parallel_size > 1 or config.data_parallel_backend == "ray"


def check_memory(config: EngineConfig, size: int) -> None:
    """Raises ValueError where this machine could not hold `size` replicas; of those of Ray, one."""
    size = 1 if config.data_parallel_backend == "ray" else size
    least = _PROCESS_BYTES * config.tensor_parallel_size * config.pipeline_parallel_size
    if config.num_blocks is None:
        least += config.kv_cache_memory_bytes
    require_memory(f"data_parallel_size={shown(size)}", size * least, "ask for fewer, or for smaller caches")


def check_data_parallel_rank(rank: int | None, size: int) -> int | None:
    """The replica that a request is to run in, None where the balancer picks it. Raises ValueError for another number.

    Upstream: upstream/vllm/v1/engine/input_processor.py:255 — "if data_parallel_rank is not None and not".
    """
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < size):
        raise ValueError(
            f"data_parallel_rank must be a whole number from 0 to {size - 1} (data_parallel_size={size}), got "
            f"{shown(rank)}"
        )
    return rank


def refuse_replicas(config: EngineConfig, name: str, has_many: bool) -> None:
    """Raises ValueError where something that has one core, unless it `has_many`, is asked for more.

    Upstream: upstream/vllm/entrypoints/llm.py:299 — "is not supported for single-".
    """
    asked = f"data_parallel_size={config.data_parallel_size}"
    if config.data_parallel_backend == "ray":
        asked = "data_parallel_backend='ray'"
    if has_replicas(config) and not has_many:
        raise ValueError(
            f"{name}({asked}) is not supported for single-process usage: data_parallel_size must be "
            "1. Use `AsyncLLM(enable_multiprocessing=True, data_parallel_size=...)`, or `mini-vllm serve "
            "--data-parallel-size ...`"
        )
