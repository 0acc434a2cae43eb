"""mini_vllm: a small engine with the architecture, the names and the decisions of vLLM V1, in numpy.

Everything that labs, pages and workspaces use can be imported from here, wherever it stands:
`from mini_vllm import LLM, Scheduler, KVCacheBlock`. A name is fetched from its module when it is first asked for, so
that `import mini_vllm` alone loads nothing else (upstream/vllm/__init__.py:19 — "MODULE_ATTRS" does the same).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.async_scheduler import AsyncScheduler
    from mini_vllm.attention.backend import AttentionBackend, AttentionSelectorConfig
    from mini_vllm.attention.dense import DenseBackend
    from mini_vllm.attention.kv_cache import KVCache
    from mini_vllm.attention.metadata import AttentionMetadata
    from mini_vllm.attention.online_softmax import (
        Summary,
        attend_partial,
        attend_tile,
        finalize,
        identity,
        log_sum_exp,
        merge_attn_states,
        merge_axis,
        merge_two,
    )
    from mini_vllm.attention.paged_gather import PagedGatherBackend
    from mini_vllm.attention.paged_online import PagedOnlineBackend
    from mini_vllm.attention.registry import get_attention_backend, register_backend
    from mini_vllm.attention.selector import explain, get_attn_backend
    from mini_vllm.attention.split_kv import SplitKVBackend
    from mini_vllm.block_pool import BlockPool, KVCacheBlock, get_request_block_hasher, hash_block_tokens
    from mini_vllm.block_queue import FreeKVCacheBlockQueue
    from mini_vllm.config import CacheConfig, EngineConfig, SchedulerConfig
    from mini_vllm.cudagraph.buffers import InputBuffers
    from mini_vllm.cudagraph.dispatcher import BatchDescriptor, CudagraphDispatcher, is_uniform_decode
    from mini_vllm.cudagraph.launches import ForwardLaunches
    from mini_vllm.cudagraph.manager import CudaGraphManager
    from mini_vllm.cudagraph.mode import CUDAGraphMode, resolve_cudagraph_mode
    from mini_vllm.cudagraph.runners import GraphRunner, LaunchCounter, PiecewiseGraphRunner, run_eager
    from mini_vllm.cudagraph.sizes import default_capture_sizes, pad_to_capture_size, resolve_capture_sizes
    from mini_vllm.cudagraph.wrapper import CUDAGraphWrapper, GraphPool
    from mini_vllm.engine import EngineCore, LLMEngine
    from mini_vllm.input_batch import InputBatch
    from mini_vllm.kv_cache import KVCacheManager
    from mini_vllm.kv_oracle import KVMismatchError, KVOracle, OracleRow
    from mini_vllm.llm import LLM
    from mini_vllm.model_runner import ModelRunner
    from mini_vllm.models.loader import load_model
    from mini_vllm.models.mixtral import SparseMoeBlock
    from mini_vllm.models.random_checkpoint import save_random_checkpoint, write_safetensors
    from mini_vllm.models.safetensors_reader import Checkpoint
    from mini_vllm.moe.align import moe_align_block_size, sort_by_expert
    from mini_vllm.moe.eplb import EplbState, balanced_packing, rebalance_experts, replicate_experts
    from mini_vllm.moe.experts import FusedMoE, expert_mlp, fused_experts, moe_forward_reference
    from mini_vllm.moe.load import ExpertLoad, balancedness, device_loads, expert_loads, imbalance
    from mini_vllm.moe.parallel import (
        ExpertPlacement,
        determine_expert_map,
        dispatch_matrix,
        ep_forward,
        ep_forward_all2all,
    )
    from mini_vllm.moe.routing import fused_topk, grouped_topk
    from mini_vllm.outputs import (
        CompletionOutput,
        EngineCoreOutput,
        FinishReason,
        ModelRunnerOutput,
        RequestMetrics,
        RequestOutput,
        RequestOutputKind,
    )
    from mini_vllm.parts import EngineParts, PartError
    from mini_vllm.quantization import get_quantization_config, register_quantization_config
    from mini_vllm.quantization.base_config import QuantizationConfig, QuantizeMethodBase, is_layer_skipped
    from mini_vllm.quantization.eight_bit import EightBitMethod
    from mini_vllm.quantization.fp8 import decode_e4m3, encode_e4m3, quantize_fp8
    from mini_vllm.quantization.kv_cache import KVQuantMode, kv_bytes_per_token, quantize_kv
    from mini_vllm.quantization.linear import Linear, multiply_in_blocks
    from mini_vllm.quantization.nf4 import NF4_LEVELS, dequantize_nf4, quantize_nf4
    from mini_vllm.quantization.primitives import (
        dequantize,
        dequantize_grouped,
        pack_int4,
        pack_nibbles,
        quantize_grouped,
        quantize_per_channel,
        quantize_per_tensor,
        unpack_int4,
        unpack_nibbles,
    )
    from mini_vllm.quantization.repack import awq_unpack, gptq_unpack, unpack_int32
    from mini_vllm.request import Request, RequestStatus
    from mini_vllm.request_queue import FCFSRequestQueue, PriorityRequestQueue, create_request_queue
    from mini_vllm.sampler import Sampler, SamplingMetadata, random_sample
    from mini_vllm.sampling_params import SamplingParams
    from mini_vllm.scheduler import Scheduler
    from mini_vllm.scheduler_output import CachedRequestData, NewRequestData, SchedulerOutput
    from mini_vllm.step_plan import StepPlan
    from mini_vllm.stop import check_stop
    from mini_vllm.tokenizer import ByteTokenizer, load_tokenizer
    from mini_vllm.toy_model import ToyModel

_PUBLIC: dict[str, tuple[str, ...]] = {
    "mini_vllm.async_scheduler": ("AsyncScheduler",),
    "mini_vllm.attention.backend": ("AttentionBackend", "AttentionSelectorConfig"),
    "mini_vllm.attention.dense": ("DenseBackend",),
    "mini_vllm.attention.kv_cache": ("KVCache",),
    "mini_vllm.attention.metadata": ("AttentionMetadata",),
    "mini_vllm.attention.online_softmax": (
        "Summary",
        "attend_partial",
        "attend_tile",
        "finalize",
        "identity",
        "log_sum_exp",
        "merge_attn_states",
        "merge_axis",
        "merge_two",
    ),
    "mini_vllm.attention.paged_gather": ("PagedGatherBackend",),
    "mini_vllm.attention.paged_online": ("PagedOnlineBackend",),
    "mini_vllm.attention.registry": ("get_attention_backend", "register_backend"),
    "mini_vllm.attention.selector": ("explain", "get_attn_backend"),
    "mini_vllm.attention.split_kv": ("SplitKVBackend",),
    "mini_vllm.block_pool": ("BlockPool", "KVCacheBlock", "get_request_block_hasher", "hash_block_tokens"),
    "mini_vllm.block_queue": ("FreeKVCacheBlockQueue",),
    "mini_vllm.config": ("CacheConfig", "EngineConfig", "SchedulerConfig"),
    "mini_vllm.cudagraph.buffers": ("InputBuffers",),
    "mini_vllm.cudagraph.dispatcher": ("BatchDescriptor", "CudagraphDispatcher", "is_uniform_decode"),
    "mini_vllm.cudagraph.launches": ("ForwardLaunches",),
    "mini_vllm.cudagraph.manager": ("CudaGraphManager",),
    "mini_vllm.cudagraph.mode": ("CUDAGraphMode", "resolve_cudagraph_mode"),
    "mini_vllm.cudagraph.runners": ("GraphRunner", "LaunchCounter", "PiecewiseGraphRunner", "run_eager"),
    "mini_vllm.cudagraph.sizes": ("default_capture_sizes", "pad_to_capture_size", "resolve_capture_sizes"),
    "mini_vllm.cudagraph.wrapper": ("CUDAGraphWrapper", "GraphPool"),
    "mini_vllm.engine": ("EngineCore", "LLMEngine"),
    "mini_vllm.input_batch": ("InputBatch",),
    "mini_vllm.kv_cache": ("KVCacheManager",),
    "mini_vllm.kv_oracle": ("KVMismatchError", "KVOracle", "OracleRow"),
    "mini_vllm.llm": ("LLM",),
    "mini_vllm.model_runner": ("ModelRunner",),
    "mini_vllm.models.loader": ("load_model",),
    "mini_vllm.models.mixtral": ("SparseMoeBlock",),
    "mini_vllm.models.random_checkpoint": ("save_random_checkpoint", "write_safetensors"),
    "mini_vllm.models.safetensors_reader": ("Checkpoint",),
    "mini_vllm.moe.align": ("moe_align_block_size", "sort_by_expert"),
    "mini_vllm.moe.eplb": ("EplbState", "balanced_packing", "rebalance_experts", "replicate_experts"),
    "mini_vllm.moe.experts": ("FusedMoE", "expert_mlp", "fused_experts", "moe_forward_reference"),
    "mini_vllm.moe.load": ("ExpertLoad", "balancedness", "device_loads", "expert_loads", "imbalance"),
    "mini_vllm.moe.parallel": (
        "ExpertPlacement",
        "determine_expert_map",
        "dispatch_matrix",
        "ep_forward",
        "ep_forward_all2all",
    ),
    "mini_vllm.moe.routing": ("fused_topk", "grouped_topk"),
    "mini_vllm.outputs": (
        "CompletionOutput",
        "EngineCoreOutput",
        "FinishReason",
        "ModelRunnerOutput",
        "RequestMetrics",
        "RequestOutput",
        "RequestOutputKind",
    ),
    "mini_vllm.parts": ("EngineParts", "PartError"),
    "mini_vllm.quantization": ("get_quantization_config", "register_quantization_config"),
    "mini_vllm.quantization.base_config": ("QuantizationConfig", "QuantizeMethodBase", "is_layer_skipped"),
    "mini_vllm.quantization.eight_bit": ("EightBitMethod",),
    "mini_vllm.quantization.fp8": ("decode_e4m3", "encode_e4m3", "quantize_fp8"),
    "mini_vllm.quantization.kv_cache": ("KVQuantMode", "kv_bytes_per_token", "quantize_kv"),
    "mini_vllm.quantization.linear": ("Linear", "multiply_in_blocks"),
    "mini_vllm.quantization.nf4": ("NF4_LEVELS", "dequantize_nf4", "quantize_nf4"),
    "mini_vllm.quantization.primitives": (
        "dequantize",
        "dequantize_grouped",
        "pack_int4",
        "pack_nibbles",
        "quantize_grouped",
        "quantize_per_channel",
        "quantize_per_tensor",
        "unpack_int4",
        "unpack_nibbles",
    ),
    "mini_vllm.quantization.repack": ("awq_unpack", "gptq_unpack", "unpack_int32"),
    "mini_vllm.request": ("Request", "RequestStatus"),
    "mini_vllm.request_queue": ("FCFSRequestQueue", "PriorityRequestQueue", "create_request_queue"),
    "mini_vllm.sampler": ("Sampler", "SamplingMetadata", "random_sample"),
    "mini_vllm.sampling_params": ("SamplingParams",),
    "mini_vllm.scheduler": ("Scheduler",),
    "mini_vllm.scheduler_output": ("CachedRequestData", "NewRequestData", "SchedulerOutput"),
    "mini_vllm.step_plan": ("StepPlan",),
    "mini_vllm.stop": ("check_stop",),
    "mini_vllm.tokenizer": ("ByteTokenizer", "load_tokenizer"),
    "mini_vllm.toy_model": ("ToyModel",),
}

_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULE_OF)
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _FormerPlaces:
    """Asked last for a module that nobody found: says where it is now, if it stood here once (`mini_vllm.moved`)."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        if fullname.startswith("mini_vllm.") and fullname != "mini_vllm.moved":
            from mini_vllm.moved import refuse

            refuse(fullname)


sys.meta_path[:] = [each for each in sys.meta_path if getattr(each, "__name__", "") != _FormerPlaces.__name__]
sys.meta_path.append(_FormerPlaces)
