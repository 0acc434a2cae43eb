"""The KV cache's settings. Upstream twin: `vllm/config/cache.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mini_vllm.config.utils import flag, whole_number
from mini_vllm.kv_cache_interface import MAMBA_CACHE_MODES, get_kv_quant_mode
from mini_vllm.utils.checks import is_real, shown
from mini_vllm.utils.mem_utils import GIB, require_memory


@dataclass
class CacheConfig:
    """The KV cache.

    `num_blocks` counts the null block (upstream: `num_gpu_blocks_override`). Where it is None, as many blocks are
    made as `kv_cache_memory_bytes` holds; upstream takes what is left of the GPU's memory instead.
    `gpu_memory_utilization`: the share of the machine's memory that the engine may take, above 0 and at most 1 (the
    CPU's memory on a CPU, as upstream): the pool gets what weights and all else leave of it. It counts where
    `kv_cache_memory_bytes` is unset.
    `prefix_caching_hash_algo`: upstream's hash of a block, "sha256", "sha256_cbor", "xxhash" or "xxhash_cbor" (the last
    three need cbor2 or xxhash). None: ours, SHA-256 of the bytes themselves, which differs from each. Upstream's
    default is "sha256".
    `kv_cache_dtype`: how keys and values are stored, "auto" (as they are computed), "int8", "fp8", …: see
    `layers/quantization/kv_cache.py`.
    `mamba_cache_mode`: which states are kept to be found again, of layers that keep a state, "align" or "all"
    (`MambaSpec`); "none", the default, leaves it to the model. Without prefix caching it is "none".
    `kv_offloading_size`: GiB of the host's memory, of all ranks together, for blocks that the pool loses
    (`kv_offload/`); None: none. `kv_offloading_backend`: who keeps them, "native".
    """

    block_size: int = 16
    num_blocks: int | None = None
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str | None = None
    kv_cache_memory_bytes: int = 1 << 30
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    mamba_cache_mode: str = "none"
    kv_offloading_size: float | None = None
    kv_offloading_backend: str = "native"

    def __post_init__(self) -> None:
        whole_number("block_size", self.block_size, 1)
        if self.num_blocks is not None:
            whole_number("num_blocks", self.num_blocks, 2, " (block 0 is the null block)")
        whole_number("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        flag("enable_prefix_caching", self.enable_prefix_caching)
        share = self.gpu_memory_utilization
        if share is not None and not (is_real(share) and 0 < share <= 1):
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, got {shown(share)}")
        get_kv_quant_mode(self.kv_cache_dtype)
        if self.mamba_cache_mode not in MAMBA_CACHE_MODES:
            allowed = ", ".join(MAMBA_CACHE_MODES)
            raise ValueError(f"mamba_cache_mode must be one of {allowed}, got {shown(self.mamba_cache_mode)}")
        self._check_offloading()
        self.get_block_hasher()

    def _check_offloading(self) -> None:
        size = self.kv_offloading_size
        if self.kv_offloading_backend != "native":
            raise ValueError(f"kv_offloading_backend must be 'native', got {shown(self.kv_offloading_backend)}")
        if size is None:
            return
        if not is_real(size) or not 0 < size < float("inf"):
            raise ValueError(f"kv_offloading_size must be a number of GiB above 0, got {shown(size)}")
        require_memory(f"kv_offloading_size={shown(size)}", int(size * GIB), "ask for less")

    def get_block_hasher(self) -> Callable[..., bytes] | None:
        """What hashes a full block; None: ours. Raises as `get_hash_fn_by_name`."""
        if self.prefix_caching_hash_algo is None:
            return None
        from mini_vllm.utils.hashing import get_block_hasher, get_hash_fn_by_name

        return get_block_hasher(get_hash_fn_by_name(self.prefix_caching_hash_algo))
