"""Attention backends by name. Upstream twin: `vllm/v1/attention/backends/registry.py`.

A backend is built once per engine, `Backend(kv_cache, num_heads, sliding_windows)`, and asked once per step:
`backend.begin_step(metadata)` gives the callable that the model calls in each layer,
`attn(layer_idx, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]`.
Read `dense.py` first: it is attention as a textbook has it, and the others compute the same, faster. Which one is taken
when nobody asks for one: `attention/selector.py`.
"""

from __future__ import annotations

import importlib
from typing import Any

from mini_vllm.utils.checks import shown
from mini_vllm.utils.import_utils import resolve_obj_by_qualname

DEFAULT_BACKEND = "paged_gather"
_BACKENDS: dict[str, tuple[str, str] | type | str] = {
    "paged_gather": ("paged_gather", "PagedGatherBackend"),
    "paged_online": ("paged_online", "PagedOnlineBackend"),
    "split_kv": ("split_kv", "SplitKVBackend"),
    "dense": ("dense", "DenseBackend"),
    "mla": ("mla", "MLABackend"),
    "per_token": ("per_token", "PerTokenBackend"),
}


def register_backend(name: str, backend_class: type | str) -> None:
    """Add a backend, or replace one: a class, or "package.module.Class", imported when it is asked for. A new one is
    never chosen by itself, only by name: by the engine argument, or by a platform.

    Upstream: upstream/vllm/v1/attention/backends/registry.py:203 — `register_backend`.
    """
    _BACKENDS[name] = backend_class


def get_attention_backend(name: Any = None) -> Any:
    """The backend class of that name, which may be "package.module.Class"; None: the default; a class (or whatever
    makes a backend) is handed back.

    Raises:
        ValueError: names the argument, its value and what is allowed.
    """
    if callable(name):
        return name
    entry: Any = None
    if isinstance(name, str | None):
        entry = _BACKENDS.get(name or DEFAULT_BACKEND, name if name and "." in name else None)
    if entry is None:
        raise ValueError(f"attention_backend must be one of {', '.join(sorted(_BACKENDS))}, got {shown(name)}")
    if isinstance(entry, tuple):
        module, class_name = entry
        return getattr(importlib.import_module(f"mini_vllm.attention.backends.{module}"), class_name)
    return resolve_obj_by_qualname(entry) if isinstance(entry, str) else entry
