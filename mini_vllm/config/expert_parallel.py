"""Experts on the ranks of all replicas, and what does not go with it. Upstream twin: `vllm/config/parallel.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mini_vllm.distributed.shared_memory import is_supported
from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig
from mini_vllm.utils.checks import shown

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.transformers_utils.config import HFConfig


def replicas_share_experts(config: EngineConfig, hf_config: HFConfig | None, data_parallel_size: int) -> bool:
    """Whether replicas deal the experts of a model to each other, and so have to take their steps together.

    Without `enable_expert_parallel` each replica of a mixture has all experts, and goes its own way. (Upstream shares
    every expert among all ranks then: upstream/vllm/model_executor/layers/fused_moe/config.py:1190 — "if not use_ep:".)

    Raises:
        ValueError: with what it is not served, or too few experts.
    """
    from mini_vllm.model_loader.default_loader import make_model
    from mini_vllm.models.registry import convert_model_class, get_model_class

    if data_parallel_size == 1 or not config.enable_expert_parallel or hf_config is None or hf_config.moe is None:
        return False
    drafts, backend = config.speculative_config, config.distributed_executor_backend
    for name, value, is_refused in (
        ("speculative_config method", getattr(drafts, "method", None), drafts is not None and drafts.method != "ngram"),
        ("enable_lora", config.enable_lora, config.enable_lora),
        ("runner", config.runner, config.runner_type == "pooling"),
        ("pipeline_parallel_size", config.pipeline_parallel_size, config.pipeline_parallel_size > 1),
        ("cudagraph_mode", config.cudagraph_mode, bool(config.resolved_cudagraph_mode)),
        ("device", config.device, config.device != "cpu"),
        ("distributed_executor_backend", backend, backend not in (None, "uni", "mp")),
        ("data_parallel_backend", config.data_parallel_backend, config.data_parallel_backend != "mp"),
    ):
        if is_refused:
            raise ValueError(
                f"{name}={shown(value)} is not served where replicas share experts: leave enable_expert_parallel out, "
                f"or set data_parallel_size=1, got {shown(data_parallel_size)}"
            )
    if not is_supported():
        raise ValueError("enable_expert_parallel with data_parallel_size above 1 needs Linux on x86-64")
    ranks: Any = SimpleNamespace(world_size=data_parallel_size * config.tensor_parallel_size, rank=0)
    group: Any = None
    if config.tensor_parallel_size > 1:
        group = SimpleNamespace(rank=0, world_size=config.tensor_parallel_size, mm_encoder_tp_mode="weights")
    ep = FusedMoEParallelConfig(config.expert_placement_strategy, ranks)
    model_class = convert_model_class(get_model_class(hf_config.architecture), config.convert_type)
    make_model(model_class, hf_config, config.dtype, None, group, True, None, ep)  # what only an architecture knows
    return True
