"""mini_vllm: a small engine with the architecture, the names and the decisions of vLLM V1, in numpy.

Whatever labs, pages and workspaces use is imported from here; a name is fetched when it is first asked for.
"""

from __future__ import annotations

import time
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

# fmt: off
# isort: off
if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionBackend, AttentionMetadata, AttentionSelectorConfig
    from mini_vllm.attention.backends.dense import DenseBackend
    from mini_vllm.attention.backends.paged_gather import PagedGatherBackend
    from mini_vllm.attention.backends.paged_online import PagedOnlineBackend
    from mini_vllm.attention.backends.registry import get_attention_backend, register_backend
    from mini_vllm.attention.backends.split_kv import SplitKVBackend
    from mini_vllm.attention.kv_cache import KVCache
    from mini_vllm.attention.ops.online_softmax import (
        Summary, attend_partial, attend_tile, finalize, identity, log_sum_exp, merge_attn_states, merge_axis,
        merge_two,
    )
    from mini_vllm.attention.quantized_kv_cache import quantize_kv
    from mini_vllm.attention.selector import explain, get_attn_backend
    from mini_vllm.benchmarks.cost_model import CostModel, StepShape
    from mini_vllm.benchmarks.simulator import SimRequest, Simulator, replay
    from mini_vllm.compilation.cuda_graph import CUDAGraphWrapper, GraphPool
    from mini_vllm.compilation.cudagraph.buffers import InputBuffers
    from mini_vllm.compilation.cudagraph.launches import ForwardLaunches
    from mini_vllm.compilation.cudagraph.manager import CudaGraphManager
    from mini_vllm.compilation.cudagraph.runners import GraphRunner, LaunchCounter, PiecewiseGraphRunner, run_eager
    from mini_vllm.compilation.cudagraph_dispatcher import BatchDescriptor, CudagraphDispatcher, is_uniform_decode
    from mini_vllm.config.cache import CacheConfig
    from mini_vllm.config.compilation import (
        CUDAGraphMode, default_capture_sizes, pad_to_capture_size, resolve_capture_sizes,
        resolve_cudagraph_mode,
    )
    from mini_vllm.config.scheduler import SchedulerConfig
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.block_pool import BlockPool
    from mini_vllm.core.kv_cache_manager import KVCacheManager
    from mini_vllm.core.kv_cache_utils import (
        FreeKVCacheBlockQueue, KVCacheBlock, get_request_block_hasher, hash_block_tokens,
    )
    from mini_vllm.core.sched.async_scheduler import AsyncScheduler
    from mini_vllm.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
    from mini_vllm.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue, create_request_queue
    from mini_vllm.core.sched.scheduler import Scheduler
    from mini_vllm.core.sched.step_plan import StepPlan
    from mini_vllm.core.sched.utils import check_stop
    from mini_vllm.distributed.eplb.eplb_state import EplbState
    from mini_vllm.distributed.eplb.policy.default import balanced_packing, rebalance_experts, replicate_experts
    from mini_vllm.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
    from mini_vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.engine.async_llm_engine import AsyncLLMEngine
    from mini_vllm.engine.core import EngineCore
    from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError
    from mini_vllm.engine.llm_engine import LLMEngine
    from mini_vllm.engine.parts import EngineParts, PartError
    from mini_vllm.entrypoints.llm import LLM
    from mini_vllm.inputs.llm import PromptType, TextPrompt, TokensPrompt
    from mini_vllm.kv_cache_interface import KVQuantMode, kv_bytes_per_token
    from mini_vllm.kv_oracle import KVMismatchError, KVOracle, OracleRow
    from mini_vllm.layers.fused_moe.expert_load import ExpertLoad, balancedness, device_loads, expert_loads, imbalance
    from mini_vllm.layers.fused_moe.expert_parallel import (
        ExpertPlacement, determine_expert_map, dispatch_matrix, ep_forward, ep_forward_all2all,
    )
    from mini_vllm.layers.fused_moe.fused_moe import expert_mlp, fused_experts, moe_forward_reference
    from mini_vllm.layers.fused_moe.layer import FusedMoE
    from mini_vllm.layers.fused_moe.moe_align_block_size import moe_align_block_size, sort_by_expert
    from mini_vllm.layers.fused_moe.routing import fused_topk, grouped_topk
    from mini_vllm.layers.linear import Linear
    from mini_vllm.layers.quantization import get_quantization_config, register_quantization_config
    from mini_vllm.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase, is_layer_skipped
    from mini_vllm.layers.quantization.eight_bit import EightBitMethod
    from mini_vllm.layers.quantization.nf4 import dequantize_nf4, quantize_nf4
    from mini_vllm.layers.quantization.primitives import (
        dequantize, dequantize_grouped, pack_int4, pack_nibbles, quantize_grouped, quantize_per_channel,
        quantize_per_tensor, unpack_int4, unpack_nibbles,
    )
    from mini_vllm.layers.quantization.repack import awq_unpack
    from mini_vllm.layers.quantization.utils.fp8_utils import decode_e4m3, encode_e4m3, quantize_fp8
    from mini_vllm.layers.utils import multiply_in_blocks
    from mini_vllm.logprobs import FlatLogprobs, Logprob
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.metrics.reader import Counter, Gauge, Histogram, Metric, Vector
    from mini_vllm.metrics.stats import RequestMetrics, RequestStateStats
    from mini_vllm.model_loader.default_loader import load_model
    from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint, write_safetensors
    from mini_vllm.model_loader.safetensors_reader import Checkpoint
    from mini_vllm.models.mixtral import MixtralMoE, SparseMoeBlock
    from mini_vllm.outputs import CompletionOutput, ModelRunnerOutput, RequestOutput, SamplerOutput
    from mini_vllm.models.registry import ModelRegistry
    from mini_vllm.multimodal.inputs import PlaceholderRange
    from mini_vllm.platforms.cpu.platform import CpuPlatform
    from mini_vllm.platforms.interface import Platform
    from mini_vllm.pool.outputs import (
        ClassificationOutput, ClassificationRequestOutput, EmbeddingOutput, EmbeddingRequestOutput,
        PoolingOutput, PoolingRequestOutput, ScoringOutput, ScoringRequestOutput,
    )
    from mini_vllm.pool.params import PoolingParams
    from mini_vllm.profiler.wrapper import profile
    from mini_vllm.request import Request, RequestStatus
    from mini_vllm.sample.logits_processor import (
        AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, MoveDirectionality,
    )
    from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
    from mini_vllm.sample.ops.topk_topp_sampler import random_sample
    from mini_vllm.sample.rejection_sampler import RejectionSampler
    from mini_vllm.sample.sampler import Sampler
    from mini_vllm.sampling_params import BeamSearchParams, RepetitionDetectionParams, RequestOutputKind, SamplingParams
    from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
    from mini_vllm.spec_decode.ngram_proposer import NgramProposer
    from mini_vllm.structured_outputs_params import StructuredOutputsParams
    from mini_vllm.tokenizers.byte import ByteTokenizer
    from mini_vllm.tokenizers.registry import load_tokenizer
    from mini_vllm.toy_model import ToyModel
    from mini_vllm.worker.input_batch import InputBatch
    from mini_vllm.worker.model_runner import ModelRunner
    from mini_vllm.worker.worker import Worker
# isort: on
# fmt: on

_PUBLIC: dict[str, tuple[str, ...]] = {
    "mini_vllm.attention.backend": ("AttentionBackend", "AttentionMetadata", "AttentionSelectorConfig"),
    "mini_vllm.attention.backends.dense": ("DenseBackend",),
    "mini_vllm.attention.backends.paged_gather": ("PagedGatherBackend",),
    "mini_vllm.attention.backends.paged_online": ("PagedOnlineBackend",),
    "mini_vllm.attention.backends.registry": ("get_attention_backend", "register_backend"),
    "mini_vllm.attention.backends.split_kv": ("SplitKVBackend",),
    "mini_vllm.attention.kv_cache": ("KVCache",),
    "mini_vllm.attention.ops.online_softmax": (
        "Summary", "attend_partial", "attend_tile", "finalize", "identity", "log_sum_exp",
        "merge_attn_states", "merge_axis", "merge_two",
    ),
    "mini_vllm.attention.quantized_kv_cache": ("quantize_kv",),
    "mini_vllm.attention.selector": ("explain", "get_attn_backend"),
    "mini_vllm.benchmarks.cost_model": ("CostModel", "StepShape"),
    "mini_vllm.benchmarks.simulator": ("SimRequest", "Simulator", "replay"),
    "mini_vllm.compilation.cuda_graph": ("CUDAGraphWrapper", "GraphPool"),
    "mini_vllm.compilation.cudagraph.buffers": ("InputBuffers",),
    "mini_vllm.compilation.cudagraph.launches": ("ForwardLaunches",),
    "mini_vllm.compilation.cudagraph.manager": ("CudaGraphManager",),
    "mini_vllm.compilation.cudagraph.runners": ("GraphRunner", "LaunchCounter", "PiecewiseGraphRunner", "run_eager"),
    "mini_vllm.compilation.cudagraph_dispatcher": ("BatchDescriptor", "CudagraphDispatcher", "is_uniform_decode"),
    "mini_vllm.config.cache": ("CacheConfig",),
    "mini_vllm.config.compilation": (
        "CUDAGraphMode", "default_capture_sizes", "pad_to_capture_size", "resolve_capture_sizes",
        "resolve_cudagraph_mode",
    ),
    "mini_vllm.config.scheduler": ("SchedulerConfig",),
    "mini_vllm.config.vllm": ("EngineConfig",),
    "mini_vllm.core.block_pool": ("BlockPool",),
    "mini_vllm.core.kv_cache_manager": ("KVCacheManager",),
    "mini_vllm.core.kv_cache_utils": (
        "FreeKVCacheBlockQueue", "KVCacheBlock", "get_request_block_hasher", "hash_block_tokens",
    ),
    "mini_vllm.core.sched.async_scheduler": ("AsyncScheduler",),
    "mini_vllm.core.sched.output": ("CachedRequestData", "NewRequestData", "SchedulerOutput"),
    "mini_vllm.core.sched.request_queue": ("FCFSRequestQueue", "PriorityRequestQueue", "create_request_queue"),
    "mini_vllm.core.sched.scheduler": ("Scheduler",),
    "mini_vllm.core.sched.step_plan": ("StepPlan",),
    "mini_vllm.core.sched.utils": ("check_stop",),
    "mini_vllm.distributed.eplb.eplb_state": ("EplbState",),
    "mini_vllm.distributed.eplb.policy.default": ("balanced_packing", "rebalance_experts", "replicate_experts"),
    "mini_vllm.engine": ("EngineCoreOutput", "EngineCoreOutputs", "EngineCoreRequest", "FinishReason"),
    "mini_vllm.engine.arg_utils": ("AsyncEngineArgs", "EngineArgs"),
    "mini_vllm.engine.async_llm": ("AsyncLLM",),
    "mini_vllm.engine.async_llm_engine": ("AsyncLLMEngine",),
    "mini_vllm.engine.core": ("EngineCore",),
    "mini_vllm.engine.exceptions": ("EngineDeadError", "EngineGenerateError"),
    "mini_vllm.engine.llm_engine": ("LLMEngine",),
    "mini_vllm.engine.parts": ("EngineParts", "PartError"),
    "mini_vllm.entrypoints.llm": ("LLM",),
    "mini_vllm.inputs.llm": ("PromptType", "TextPrompt", "TokensPrompt"),
    "mini_vllm.kv_cache_interface": ("KVQuantMode", "kv_bytes_per_token"),
    "mini_vllm.kv_oracle": ("KVMismatchError", "KVOracle", "OracleRow"),
    "mini_vllm.layers.fused_moe.expert_load": (
        "ExpertLoad", "balancedness", "device_loads", "expert_loads", "imbalance",
    ),
    "mini_vllm.layers.fused_moe.expert_parallel": (
        "ExpertPlacement", "determine_expert_map", "dispatch_matrix", "ep_forward", "ep_forward_all2all",
    ),
    "mini_vllm.layers.fused_moe.fused_moe": ("expert_mlp", "fused_experts", "moe_forward_reference"),
    "mini_vllm.layers.fused_moe.layer": ("FusedMoE",),
    "mini_vllm.layers.fused_moe.moe_align_block_size": ("moe_align_block_size", "sort_by_expert"),
    "mini_vllm.layers.fused_moe.routing": ("fused_topk", "grouped_topk"),
    "mini_vllm.layers.linear": ("Linear",),
    "mini_vllm.layers.utils": ("multiply_in_blocks",),
    "mini_vllm.layers.quantization": ("get_quantization_config", "register_quantization_config"),
    "mini_vllm.layers.quantization.base_config": ("QuantizationConfig", "QuantizeMethodBase", "is_layer_skipped"),
    "mini_vllm.layers.quantization.eight_bit": ("EightBitMethod",),
    "mini_vllm.layers.quantization.nf4": ("dequantize_nf4", "quantize_nf4"),
    "mini_vllm.layers.quantization.primitives": (
        "dequantize", "dequantize_grouped", "pack_int4", "pack_nibbles", "quantize_grouped",
        "quantize_per_channel", "quantize_per_tensor", "unpack_int4", "unpack_nibbles",
    ),
    "mini_vllm.layers.quantization.repack": ("awq_unpack",),
    "mini_vllm.layers.quantization.utils.fp8_utils": ("decode_e4m3", "encode_e4m3", "quantize_fp8"),
    "mini_vllm.logprobs": ("FlatLogprobs", "Logprob"),
    "mini_vllm.lora.request": ("LoRARequest",),
    "mini_vllm.metrics.reader": ("Counter", "Gauge", "Histogram", "Metric", "Vector"),
    "mini_vllm.metrics.stats": ("RequestMetrics", "RequestStateStats"),
    "mini_vllm.model_loader.default_loader": ("load_model",),
    "mini_vllm.model_loader.random_checkpoint": ("save_random_checkpoint", "write_safetensors"),
    "mini_vllm.model_loader.safetensors_reader": ("Checkpoint",),
    "mini_vllm.models.mixtral": ("MixtralMoE", "SparseMoeBlock"),
    "mini_vllm.outputs": ("CompletionOutput", "ModelRunnerOutput", "RequestOutput", "SamplerOutput"),
    "mini_vllm.models.registry": ("ModelRegistry",),
    "mini_vllm.multimodal.inputs": ("PlaceholderRange",),
    "mini_vllm.platforms.cpu.platform": ("CpuPlatform",),
    "mini_vllm.platforms.interface": ("Platform",),
    "mini_vllm.pool.outputs": (
        "ClassificationOutput", "ClassificationRequestOutput", "EmbeddingOutput", "EmbeddingRequestOutput",
        "PoolingOutput", "PoolingRequestOutput", "ScoringOutput", "ScoringRequestOutput",
    ),
    "mini_vllm.pool.params": ("PoolingParams",),
    "mini_vllm.profiler.wrapper": ("profile",),
    "mini_vllm.request": ("Request", "RequestStatus"),
    "mini_vllm.sample.logits_processor": (
        "AdapterLogitsProcessor", "BatchUpdate", "LogitsProcessor", "MoveDirectionality",
    ),
    "mini_vllm.sample.metadata": ("SamplingMetadata", "SamplingRow"),
    "mini_vllm.sample.ops.topk_topp_sampler": ("random_sample",),
    "mini_vllm.sample.rejection_sampler": ("RejectionSampler",),
    "mini_vllm.sample.sampler": ("Sampler",),
    "mini_vllm.sampling_params": (
        "BeamSearchParams", "RepetitionDetectionParams", "RequestOutputKind", "SamplingParams",
    ),
    "mini_vllm.spec_decode.metadata": ("SpecDecodeMetadata",),
    "mini_vllm.spec_decode.ngram_proposer": ("NgramProposer",),
    "mini_vllm.structured_outputs_params": ("StructuredOutputsParams",),
    "mini_vllm.tokenizers.byte": ("ByteTokenizer",),
    "mini_vllm.tokenizers.registry": ("load_tokenizer",),
    "mini_vllm.toy_model": ("ToyModel",),
    "mini_vllm.worker.input_batch": ("InputBatch",),
    "mini_vllm.worker.model_runner": ("ModelRunner",),
    "mini_vllm.worker.worker": ("Worker",),
}  # fmt: skip

_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULE_OF)
__version__ = "0.1.0"
__version_tuple__ = (0, 1, 0)


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        value = getattr(_loaded(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    said = f"module {__name__!r} has no attribute {name!r}" + _REFUSED.get(name, "")
    if not name.startswith("_"):
        try:
            return _loaded(f"{__name__}.{name}")
        except ImportError as error:
            if error.name != f"{__name__}.{name}":
                raise
            said = said if isinstance(error, ModuleNotFoundError) else str(error)
    raise AttributeError(said)


_REFUSED = {"initialize_ray_cluster": ": an engine with distributed_executor_backend='ray' joins the cluster by itself"}


def _loaded(module: str) -> ModuleType:
    """A module, imported; again, where Python ended the import because another thread stood in its way."""
    for _ in range(100):
        try:
            return import_module(module)
        except RuntimeError as error:
            if type(error).__name__ != "_DeadlockError":
                raise
            time.sleep(0.001)
    return import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
