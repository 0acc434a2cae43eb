"""Which manager serves the specs that few models have (`kv_cache_specs.py`); it is imported when one of them comes.

Upstream: upstream/vllm/v1/core/single_type_kv_cache_manager.py:1200 — `spec_manager_map`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mini_vllm.kv_cache_interface import KVCacheSpec, KVCacheSpecKind

_MANAGERS = {
    KVCacheSpecKind.CHUNKED_LOCAL_ATTENTION: "chunked_local_attention_manager:ChunkedLocalAttentionManager",
    KVCacheSpecKind.CROSS_ATTENTION: "cross_attention_manager:CrossAttentionManager",
    KVCacheSpecKind.MAMBA: "mamba_manager:MambaManager",
}


def get_other_manager(spec: KVCacheSpec) -> type[Any]:
    """The manager of such a spec. Raises ValueError for a type that has none."""
    if spec.kind not in _MANAGERS:
        raise ValueError(f"{type(spec).__name__} has no manager: add it to `spec_manager_map` of kv_cache_coordinator")
    module, _, name = _MANAGERS[spec.kind].partition(":")
    return getattr(import_module(f"mini_vllm.core.{module}"), name)
