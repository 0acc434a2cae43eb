"""An NVIDIA GPU, driven through torch and Triton; and the same code on a CPU, through torch alone, for tests.

Upstream twin: `vllm/platforms/cuda.py`.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, ClassVar

from mini_vllm.config.cache import CacheConfig
from mini_vllm.platforms.interface import Platform
from mini_vllm.utils.mem_utils import memory_for_kv_cache, resident_memory

if TYPE_CHECKING:
    from mini_vllm.config.model import ModelConfig
    from mini_vllm.config.vllm import EngineConfig

DEVICE_DTYPES = {
    "auto": "bfloat16", "bfloat16": "bfloat16", "float16": "float16", "half": "float16",
    "float32": "float32", "float": "float32",
}  # fmt: skip
"""`dtype` -> what the device computes in."""
DEFAULT_SHARE = 0.92
"""Of the GPU's memory, where no argument says how large the KV cache is (upstream/vllm/config/cache.py:66 —
"default=0.92")."""
KV_DEFAULT = CacheConfig.kv_cache_memory_bytes


class CudaPlatform(Platform):
    """Upstream: upstream/vllm/platforms/cuda.py:162 — `CudaPlatformBase`."""

    device_name: ClassVar[str] = "cuda"
    device_type: ClassVar[str] = "cuda"
    supported_dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    default_async_scheduling: ClassVar[bool] = True
    supports_pooling: ClassVar[bool] = False
    kv_cache_in_host_memory: ClassVar[bool] = False

    def check_available(self) -> None:
        """torch, Triton and a GPU."""
        for package in ("torch", "triton"):
            if importlib.util.find_spec(package) is None:
                raise ValueError(f"device='cuda' needs the package {package}: pip install -e '.[triton]'")
        import torch

        if not torch.cuda.is_available():
            raise ValueError("device='cuda' needs an NVIDIA GPU, and torch sees none; device='cpu' needs none")

    def compute_dtype(self, model_config: ModelConfig) -> str:
        """Weights are read as float32 and rounded once, on their way to the device."""
        if model_config.dtype not in DEVICE_DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DEVICE_DTYPES)} on a GPU, got {model_config.dtype!r}")
        return "float32"

    def device_dtype(self, dtype: str) -> str:
        """torch's name of the numbers that the device computes in."""
        return DEVICE_DTYPES[dtype]

    def check_and_update_config(self, config: EngineConfig) -> None:
        """What the GPU's runner has not: each refused by name."""
        refused = {
            "tensor_parallel_size": config.tensor_parallel_size > 1 and config.tensor_parallel_size,
            "speculative_config": config.speculative_config is not None and "a drafter",
            "enable_lora": config.lora is not None,
            "quantization": config.quantization,
            "quantization_config": config.quantization_config,
            "kv_cache_dtype": config.kv_cache_dtype != "auto" and config.kv_cache_dtype,
            "kv_oracle": config.kv_oracle,
            "attention_backend": config.attention_backend,
            "logits_processors": bool(config.model_config.logits_processors) and "custom ones",
        }
        for name, value in refused.items():
            if value:
                raise ValueError(f"{name}={value!r} is not there with device={config.device!r}: use device='cpu'")
        asked = config.gpu_memory_utilization, config.num_blocks
        if not self.kv_cache_in_host_memory and asked == (None, None) and config.kv_cache_memory_bytes == KV_DEFAULT:
            config.gpu_memory_utilization = DEFAULT_SHARE

    def get_worker_cls(self) -> type[Any]:
        """`GPUWorker`."""
        from mini_vllm.worker.gpu.worker import GPUWorker

        return GPUWorker

    def support_static_graph_mode(self) -> bool:
        """Upstream: upstream/vllm/platforms/cuda.py:553 — `CudaPlatformBase.support_static_graph_mode`."""
        return True

    def empty_cache(self) -> None:
        """What torch keeps."""
        import torch

        torch.cuda.empty_cache()

    def memory_for_kv_cache(self, share: float, workers: Any) -> int | None:
        """What a step of the largest size leaves of that share of the GPU's memory."""
        return sum(workers("determine_available_memory", args=(share,)))


class TorchCpuPlatform(CudaPlatform):
    """The runner, the compiled form and the sampler of `CudaPlatform` on a CPU: torch's operations in the place of
    Triton's kernels, no graphs. Slow, and no use but to test them where there is no GPU."""

    device_name: ClassVar[str] = "torch"
    device_type: ClassVar[str] = "cpu"
    supported_dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    kv_cache_in_host_memory: ClassVar[bool] = True

    def check_available(self) -> None:
        """torch."""
        if importlib.util.find_spec("torch") is None:
            raise ValueError("device='torch' needs the package torch: pip install -e '.[torch]'")

    def device_dtype(self, dtype: str) -> str:
        """ "auto" is float32 here."""
        return "float32" if dtype == "auto" else super().device_dtype(dtype)

    def support_static_graph_mode(self) -> bool:
        """No."""
        return False

    def empty_cache(self) -> None:
        """Nothing is kept."""

    def memory_for_kv_cache(self, share: float, workers: Any) -> int | None:
        """As on the CPU."""
        return memory_for_kv_cache(share, sum(workers(resident_memory)))
