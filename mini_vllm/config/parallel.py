"""Who owns the ranks and where they are; what goes with several ranks and replicas, and what does not.

Upstream twin: `vllm/config/parallel.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mini_vllm.config.data_parallel import check_backend, check_data_parallel
from mini_vllm.config.utils import whole_number
from mini_vllm.distributed.shared_memory import is_supported
from mini_vllm.distributed.utils import divide, get_pp_indices
from mini_vllm.layers.fused_moe.config import PLACEMENTS
from mini_vllm.logger import warning_once
from mini_vllm.utils.checks import shown

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.layers.quantization.base_config import QuantizationConfig
    from mini_vllm.transformers_utils.config import HFConfig

ALL2ALL_BACKENDS = ("allgather_reducescatter", "deepep_high_throughput")


def check_parallel(config: EngineConfig) -> None:
    """Look at what says which ranks have what. Raises ValueError with the argument, its value and what is allowed.

    Upstream: upstream/vllm/config/parallel.py:108 — `ParallelConfig`.
    """
    backend = config.all2all_backend
    if backend in ("naive", "pplx"):
        warning_once(__name__, f"all2all_backend={backend!r} is no more, in vLLM too: allgather_reducescatter is used")
        config.all2all_backend = backend = ALL2ALL_BACKENDS[0]
    if backend not in ALL2ALL_BACKENDS:
        raise ValueError(f"all2all_backend must be one of {', '.join(ALL2ALL_BACKENDS)}, got {shown(backend)}")
    if (strategy := config.expert_placement_strategy) not in PLACEMENTS:
        raise ValueError(f"expert_placement_strategy must be one of {', '.join(PLACEMENTS)}, got {shown(strategy)}")
    check_pipeline(config)


def check_executor(config: EngineConfig) -> None:
    """Look at who owns the ranks, and on which machines they are.

    Raises:
        ValueError, TypeError: names the argument, its value and what is allowed.
    """
    check_backend(config)
    backend, seconds = config.distributed_executor_backend, config.execute_model_timeout_seconds
    if (config.tensor_parallel_size > 1 or backend in ("mp", "ray")) and not is_supported():
        name = "tensor_parallel_size must be 1" if backend is None else "distributed_executor_backend must be 'uni'"
        value = config.tensor_parallel_size if backend is None else backend
        raise ValueError(f"{name} on this system (more needs Linux on x86-64), got {shown(value)}")
    if not isinstance(backend, str | type | None):
        raise TypeError(f"distributed_executor_backend must be 'uni', 'mp', 'ray' or a class, got {shown(backend)}")
    if backend == "uni" and config.tensor_parallel_size > 1:
        raise ValueError(
            f"distributed_executor_backend='uni' has one rank, got tensor_parallel_size="
            f"{config.tensor_parallel_size}: use 'mp'"
        )
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ValueError(f"execute_model_timeout_seconds must be a number above 0, got {shown(seconds)}")
    if backend == "ray" and config.tensor_parallel_size * config.pipeline_parallel_size == 1:
        raise ValueError(
            "distributed_executor_backend='ray' is for more than one rank, got tensor_parallel_size=1 and "
            "pipeline_parallel_size=1"
        )
    if backend == "ray" and config.data_parallel_size != 1 and config.data_parallel_backend != "ray":
        raise ValueError(
            f"distributed_executor_backend='ray' with data_parallel_size={shown(config.data_parallel_size)} needs "
            "data_parallel_backend='ray', got 'mp'"
        )
    _check_nodes(config)


def _check_nodes(config: EngineConfig) -> None:
    """Upstream: upstream/vllm/config/parallel.py:887 — "allowed_backends"."""
    whole_number("nnodes", config.nnodes, 1)
    whole_number("node_rank", config.node_rank, 0)
    whole_number("master_port", config.master_port, 1)
    seconds, nnodes, backend = config.distributed_timeout_seconds, config.nnodes, config.distributed_executor_backend
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ValueError(f"distributed_timeout_seconds must be a number above 0, got {shown(seconds)}")
    if config.master_port > 65535:
        raise ValueError(f"master_port must be at most 65535, got {shown(config.master_port)}")
    if not isinstance(config.master_addr, str) or not config.master_addr:
        raise ValueError(f"master_addr must be a host of rank 0, got {shown(config.master_addr)}")
    if config.node_rank >= nnodes:
        raise ValueError(f"node_rank must be below nnodes={nnodes}, got {config.node_rank}")
    if nnodes == 1:
        return
    if backend not in (None, "mp"):
        raise ValueError(f"nnodes={nnodes} needs distributed_executor_backend='mp', got {shown(backend)}")
    if (ranks := config.tensor_parallel_size * config.pipeline_parallel_size) % nnodes:
        raise ValueError(
            f"nnodes must divide tensor_parallel_size * pipeline_parallel_size, {ranks}, got {nnodes}: each node has "
            "as many ranks"
        )
    if config.gpu_memory_utilization is not None and config.num_blocks is None:
        raise ValueError(
            f"gpu_memory_utilization={config.gpu_memory_utilization} is of one machine's memory: give num_blocks or "
            f"kv_cache_memory_bytes, which hold on each, with nnodes={nnodes}"
        )


def check_pipeline(config: EngineConfig) -> None:
    """Look at `pipeline_parallel_size`, and refuse what is not served with more than one stage.

    Raises:
        ValueError: names the other argument and its value.

    Upstream: upstream/vllm/config/parallel.py:111 — "pipeline_parallel_size: int = 1".
    """
    whole_number("pipeline_parallel_size", config.pipeline_parallel_size, 1)
    check_data_parallel(config)
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
        ("distributed_executor_backend", backend, backend not in (None, "mp", "ray")),
    ):
        if is_refused:
            raise ValueError(_refusal(name, value, config.pipeline_parallel_size))
    if not is_supported():
        raise ValueError(
            f"pipeline_parallel_size must be 1 on this system (more needs Linux on x86-64), got "
            f"{config.pipeline_parallel_size}"
        )


def verify_with_parallel_config(config: EngineConfig, resolved: ResolvedModel) -> None:
    """Every size that ranks share is one that they can share. Called before a process is started or memory taken.

    Raises:
        ValueError: names the argument, the size and what is allowed.

    Upstream: upstream/vllm/config/model.py:1191 — `ModelConfig.verify_with_parallel_config`, which looks at the heads.
    """
    hf_config, drafts = resolved.hf_config, config.speculative_config
    assert hf_config is not None
    get_pp_indices(hf_config.num_hidden_layers, 0, config.pipeline_parallel_size)
    if config.pipeline_parallel_size > 1:
        _check_stages(config, hf_config)
    if config.load_format != "dummy":
        _check_quantization(config, resolved, config.quantization, config.quantization_config)
    if config.lora is not None:
        from mini_vllm.lora.model_manager import layers_with_buffers

        layers_with_buffers(_make_model(config, hf_config, None, None), config.lora)
    draft: Any = None
    if drafts is not None and drafts.has_weights:
        drafts.resolve_draft_model(resolved)
        draft = drafts.draft_model_config
    if getattr(draft, "hf_config", None) is not None:
        _check_quantization(config, draft)
    if config.tensor_parallel_size == 1:
        return
    _check_sizes(config, hf_config, "the model")
    sizes = getattr(draft, "hf_config", draft)
    if hasattr(sizes, "num_attention_heads"):
        _check_sizes(config, sizes, "the draft model")
    _make_first_rank(config, resolved, hf_config)


def _check_quantization(
    config: EngineConfig, resolved: ResolvedModel, method: str | None = None, settings: dict[str, Any] | None = None
) -> None:
    """Groups and blocks of a format divide the rows of every projection, and ranks can share them."""
    from mini_vllm.layers.quantization.resolve import resolve_quantization

    hf_config = resolved.hf_config
    assert hf_config is not None
    quant_config = resolve_quantization(resolved.model, hf_config.quantization_config, method, settings)
    if quant_config is None:
        return
    _make_model(config, hf_config, quant_config, None)
    if config.tensor_parallel_size > 1:
        _make_first_rank(config, resolved, hf_config, quant_config)


def _check_stages(config: EngineConfig, hf_config: HFConfig) -> None:
    from mini_vllm.models.registry import get_model_class

    size = config.pipeline_parallel_size
    if config.runner_type != "generate":
        raise ValueError(f"a model that pools needs pipeline_parallel_size=1, got {size}")
    if getattr(get_model_class(hf_config.architecture), "supports_multimodal", False):
        raise ValueError(f"{hf_config.architecture}, which takes media, needs pipeline_parallel_size=1, got {size}")


def _check_sizes(config: EngineConfig, hf_config: HFConfig, whose: str) -> None:
    ranks, kv_heads, moe = config.tensor_parallel_size, hf_config.num_key_value_heads, hf_config.moe
    sizes = {"num_heads": hf_config.num_attention_heads}
    if moe is None or not all(moe.layers):
        sizes["intermediate_size"] = hf_config.intermediate_size
    if moe is not None and not config.enable_expert_parallel:
        sizes["the inner layer of an expert"] = moe.intermediate_size
    for name, size in sizes.items():
        divide(size, ranks, f"{name} of {whose}")
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(
            f"tensor_parallel_size must be a multiple or a divisor of num_kv_heads of {whose}, {kv_heads}, got {ranks}"
        )


def _make_first_rank(
    config: EngineConfig, resolved: ResolvedModel, hf_config: HFConfig, quant_config: QuantizationConfig | None = None
) -> None:
    """What only an architecture knows: its first rank."""
    mode = resolved.mm_encoder_tp_mode
    group: Any = SimpleNamespace(rank=0, world_size=config.tensor_parallel_size, mm_encoder_tp_mode=mode)
    model = _make_model(config, hf_config, quant_config, group)
    for layer in model.context.layers:
        if getattr(layer, "is_cut", False) and not layer.is_unquantized:
            layer.quant_method.check_part(layer)


def _make_model(config: EngineConfig, hf_config: HFConfig, quant_config: QuantizationConfig | None, group: Any) -> Any:
    """A model whose arrays are given back before a page of them is touched."""
    from mini_vllm.model_loader.default_loader import make_model
    from mini_vllm.models.registry import convert_model_class, get_model_class

    model_class = convert_model_class(get_model_class(hf_config.architecture), config.convert_type)
    return make_model(model_class, hf_config, config.dtype, quant_config, group, config.enable_expert_parallel)


def _refusal(name: str, value: Any, size: int) -> str:
    return f"{name}={value!r} is not served with stages: pipeline_parallel_size must be 1 with it, got {size}"
