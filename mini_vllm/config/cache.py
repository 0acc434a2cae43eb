"""The KV cache's settings. Upstream twin: `vllm/config/cache.py`."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.utils import whole_number
from mini_vllm.kv_cache_interface import get_kv_quant_mode


@dataclass
class CacheConfig:
    """The KV cache.

    `num_blocks` counts the null block (upstream: `num_gpu_blocks_override`). Where it is None, as many blocks are
    made as `kv_cache_memory_bytes` holds; upstream takes what is left of the GPU's memory instead.
    `kv_cache_dtype`: how keys and values are stored, "auto" (as they are computed), "int8", "fp8", …: see
    `layers/quantization/kv_cache.py`.
    """

    block_size: int = 16
    num_blocks: int | None = None
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int = 1 << 30
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        whole_number("block_size", self.block_size, 1)
        if self.num_blocks is not None:
            whole_number("num_blocks", self.num_blocks, 2, " (block 0 is the null block)")
        whole_number("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        get_kv_quant_mode(self.kv_cache_dtype)
