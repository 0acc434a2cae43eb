"""Which manager serves the specs that few models have (`kv_cache_specs.py`).

Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:1200 — `spec_manager_map`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.core.chunked_local_attention_manager import ChunkedLocalAttentionManager
from mini_vllm.core.cross_attention_manager import CrossAttentionManager
from mini_vllm.core.mamba_manager import MambaManager
from mini_vllm.kv_cache_interface import KVCacheSpec
from mini_vllm.kv_cache_specs import ChunkedLocalAttentionSpec, CrossAttentionSpec, MambaSpec

_MANAGERS: dict[type[KVCacheSpec], type[Any]] = {
    ChunkedLocalAttentionSpec: ChunkedLocalAttentionManager,
    CrossAttentionSpec: CrossAttentionManager,
    MambaSpec: MambaManager,
}


def get_other_manager(spec: KVCacheSpec) -> type[Any]:
    """The manager of such a spec. Raises ValueError for a type that has none."""
    if type(spec) not in _MANAGERS:
        raise ValueError(f"{type(spec).__name__} has no manager: add it to `spec_manager_map` of kv_cache_coordinator")
    return _MANAGERS[type(spec)]
