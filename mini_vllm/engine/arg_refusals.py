"""Engine arguments of vLLM that mini_vllm does not have: why, or what to use instead.

Upstream has no twin. Every field of `upstream/vllm/engine/arg_utils.py:412 — `EngineArgs`` is one of ours or stands
here, which a test checks. A value that switches the thing off is taken, so that a script that names upstream's defaults
runs as it is.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.transformers_utils.file_keys import EMPTY, FLAG, NULL, NUMBER, Kind, one_of
from mini_vllm.utils.checks import require, shown

_OFF: tuple[Any, ...] = (None, False, "", 0, "auto")

_REFUSED = {
    "give it as `speculative_config={'method': …, 'model': …, 'num_speculative_tokens': …}`":
        "spec_method spec_model spec_tokens",
    "all `data_parallel_size` replicas stand behind the one balancer of their engine": """
        data_parallel_rank data_parallel_start_rank
        data_parallel_size_local data_parallel_address data_parallel_rpc_port data_parallel_hybrid_lb
        data_parallel_external_lb data_parallel_multi_port_external_lb""",
    "ranks are `tensor_parallel_size`, `pipeline_parallel_size` and `data_parallel_size`": """
        enable_ep_weight_filter enable_elastic_ep enable_dbo ubatch_size
        dbo_decode_token_threshold=32 dbo_prefill_token_threshold=512 disable_nccl_for_dp_synchronization
        prefill_context_parallel_size=1 decode_context_parallel_size=1 dcp_comm_backend=ag_rs
        dcp_kv_cache_interleave_size=1 cp_kv_cache_interleave_size=1 eplb_config enable_eplb
        ray_workers_use_nsight _api_process_count=1 _api_process_rank""",
    "no graph here depends on the number of adapters": "specialize_active_lora",
    "adapters of experts are not served": "enable_mixed_moe_lora_format",
    "give it as `structured_outputs_config={'reasoning_parser': …}`":
        "reasoning_parser reasoning_parser_plugin",
    "an encoder of media has one way to be computed here": """
        mm_shm_cache_max_object_size_mb=128 mm_encoder_only mm_encoder_attn_backend mm_encoder_attn_dtype
        mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin=1.5
        mm_tensor_ipc=direct_rpc enable_mm_processor_stats renderer_num_workers=1""",
    "embeddings are no input here": "enable_prompt_embeds enable_mm_embeds io_processor_plugin",
    "adapters are of the language model alone": "default_mm_loras enable_tower_connector_lora",
    "no frame of a film is left out": "video_pruning_rate",
    "no architecture here keeps a state": """
        mamba_config mamba_cache_dtype=auto mamba_ssm_cache_dtype=auto
        mamba_block_size mamba_backend=triton enable_mamba_cache_stochastic_rounding
        mamba_cache_philox_rounds=0 gdn_prefill_backend""",
    "weights stay where they are, and no engine sleeps": """
        cpu_offload_gb cpu_offload_params
        offload_backend=auto offload_group_size offload_num_in_group=1 offload_prefetch_step=1 offload_params
        enable_sleep_mode enable_cumem_allocator weight_transfer_config""",
    "the server answers in text": "tokens_only",
    "the server's flag `--enable-log-requests` has them logged": "enable_log_requests",
    "a platform plug-in names the workers' class: docs/plugins.md": "worker_cls=auto",
    "nothing here asks for it": "worker_extension_cls additional_config model_impl=auto override_attention_dtype",
    "`LLM.get_metrics` counts, `mini_vllm.profile` and the server's own flags trace": """
        profiler_config otlp_traces_endpoint collect_detailed_traces kv_cache_metrics kv_cache_metrics_sample=0.01
        enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details
        show_hidden_metrics_for_version""",
    "edit the checkpoint's config.json instead": "hf_overrides hf_config_path config_format=auto",
    "give the folder as `model`": "model_weights code_revision tokenizer_revision",
    "use `attention_backend` instead": "attention_config",
    "use `with_labs` or `EngineParts` instead": "scheduler_cls",
    "use `quantization` and `kv_cache_dtype` instead": """
        kv_cache_dtype_skip_layers calculate_kv_scales allow_deprecated_quantization""",
    "use `long_prefill_token_threshold` instead": "max_num_partial_prefills=1 max_long_partial_prefills=1",
    "nothing here computes it": """
        enable_return_routed_experts kv_sharing_fast_prefill disable_sliding_window numa_bind numa_bind_nodes
        numa_bind_cpus""",
    "safetensors files are mapped, whatever is said": """
        model_loader_extra_config ignore_patterns=original/**/* pt_load_map_location=cpu safetensors_load_strategy
        safetensors_prefetch_num_threads=8 safetensors_prefetch_block_size=16777216""",
}  # fmt: skip
_SECONDS = "use `execute_model_timeout_seconds` instead"
_ONLY_FLAG = "it chooses how a GPU does the same thing"
WITHOUT_EFFECT: dict[str, tuple[Kind, str]] = {
    "use_tqdm_on_load": (FLAG, "an engine shows no bar while it loads"),
    "disable_custom_all_reduce": (FLAG, _ONLY_FLAG),
    "disable_cascade_attn": (FLAG, _ONLY_FLAG),
    "enable_flashinfer_autotune": (FLAG | NULL, _ONLY_FLAG),
    "swap_space": (
        NUMBER | NULL,
        "blocks are computed again, or swapped by a SwapConnector; upstream passes over it",
    ),
    "max_parallel_loading_workers": (NULL, "every rank loads its own part"),
    "kernel_config": (EMPTY, "use `attention_backend` instead"),
    "ir_op_priority": (EMPTY, "use `attention_backend` instead"),
    "moe_backend": (one_of("auto", None), "the platform has one way to compute experts"),
    "linear_backend": (one_of("auto", None), "the platform has one way to compute projections"),
    "fail_on_environ_validation": (one_of(False, None), "variables of the environment are not looked at"),
    "cpu_distributed_timeout_seconds": (NULL, _SECONDS),
    "aggregate_engine_logging": (one_of(False, None), "one engine has one log"),
}
"""Name -> the values that change nothing: here, as upstream on a CPU. All others are refused."""


def _table() -> dict[str, tuple[str, str]]:
    """Name -> (sentence, the default that is taken too, as text)."""
    found = {}
    for sentence, names in _REFUSED.items():
        for entry in names.split():
            name, _, default = entry.partition("=")
            found[name] = (sentence, default)
    return found


REFUSED = _table()


def is_upstreams(name: str) -> bool:
    """True for an argument that vLLM has and mini_vllm has not."""
    return name in REFUSED or name in WITHOUT_EFFECT


def check_upstream_argument(name: str, value: Any) -> None:
    """Pass a value that changes nothing; raises ValueError with what to use for any other."""
    if name in WITHOUT_EFFECT:
        kind, why = WITHOUT_EFFECT[name]
        require(kind.allows(value), f"engine argument {name}", value, f"{kind.said} ({why})")
        return
    sentence, default = REFUSED[name]
    if isinstance(value, dict | list | tuple | set) and not value:
        return
    if any(value is off or (type(value) is type(off) and value == off) for off in _OFF) or str(value) == default:
        return
    allowed = default or "unset"
    raise ValueError(f"engine argument {name} must be {allowed} so far, got {shown(value, 60)}: {sentence}")
