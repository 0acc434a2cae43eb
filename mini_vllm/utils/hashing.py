"""Hashes of blocks by upstream's names. Upstream twin: `vllm/utils/hashing.py`.

The engine's own hash (`core/kv_cache_utils.py`) needs none of this. Whoever compares KV cache events with a real
engine's, or shares a cache with one, sets `prefix_caching_hash_algo`, and the same PYTHONHASHSEED on both sides.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from mini_vllm.utils.checks import shown

PREFIX_CACHING_HASH_ALGOS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
"""Upstream: upstream/vllm/config/cache.py:37 — `PrefixCachingHashAlgo`."""


def get_hash_fn_by_name(hash_fn_name: str) -> Callable[[Any], bytes]:
    """A function from any value to 32 bytes ("sha256…") or 16 ("xxhash…", which is no protection against an attacker).

    Raises:
        ValueError: an unknown name. ModuleNotFoundError: the library that it needs is not installed; names it.

    Upstream: upstream/vllm/utils/hashing.py:82 — `get_hash_fn_by_name`.
    """
    if hash_fn_name not in PREFIX_CACHING_HASH_ALGOS:
        allowed = ", ".join(PREFIX_CACHING_HASH_ALGOS)
        raise ValueError(f"prefix_caching_hash_algo must be one of {allowed}, got {shown(hash_fn_name)}")
    cbor = _library("cbor2", hash_fn_name) if hash_fn_name.endswith("_cbor") else None
    xxhash = _library("xxhash", hash_fn_name) if hash_fn_name.startswith("xxhash") else None

    def hash_fn(value: Any) -> bytes:
        data = pickle.dumps(value, protocol=5) if cbor is None else cbor.dumps(value, canonical=True)
        return hashlib.sha256(data).digest() if xxhash is None else xxhash.xxh3_128_digest(data)

    return hash_fn


def _library(name: str, wanted_by: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        message = f"prefix_caching_hash_algo={wanted_by!r} needs {name}: pip install {name}"
        raise ModuleNotFoundError(message, name=name) from None


def get_block_hasher(hash_fn: Callable[[Any], bytes]) -> Callable[..., bytes]:
    """A stand-in for our `hash_block_tokens` that gives upstream's own hashes.

    A chain begins with the hash of PYTHONHASHSEED. Without it upstream begins at random, so that nobody can aim for a
    collision; here it begins with zeros, and runs repeat.

    Upstream: upstream/vllm/v1/core/kv_cache_utils.py:97 — `init_none_hash`;
    upstream/vllm/v1/core/kv_cache_utils.py:541 — `hash_block_tokens`.
    """
    seed = os.environ.get("PYTHONHASHSEED")
    first = bytes(32) if seed is None else hash_fn(seed)

    def hash_block_tokens(parent: bytes | None, token_ids: Sequence[int], extra_keys: Any = None) -> bytes:
        return hash_fn((parent or first, tuple(token_ids), extra_keys))

    return hash_block_tokens
