"""The paged KV cache in eight bits: quantized when a token is written, floats again when its block is gathered.

To the attention backends it is the same cache. Upstream dequantizes inside the attention kernel, a tile at a time:
upstream/vllm/v1/attention/ops/triton_unified_attention.py:763 — `unified_attention` (`k_descale`, `kv_quant_mode`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.attention.mla_cache import MLACache
from mini_vllm.kv_cache_interface import KVQuantMode, get_kv_quant_mode
from mini_vllm.layers.quantization.utils.fp8_utils import E4M3_MAX, decode_e4m3, encode_e4m3
from mini_vllm.utils.arrays import Array


def make_kv_cache(
    num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int,
    dtype: str | np.dtype[Any] = "float32", kv_cache_dtype: str = "auto", use_mla: bool = False,
) -> KVCache:  # fmt: skip
    """The arrays for this `kv_cache_dtype`; `dtype` is what attention computes in, and what "auto" stores.

    use_mla: rows of latents, of `head_dim` numbers, in place of keys and values; always as `dtype`.
    """
    if use_mla:
        return MLACache(num_layers, num_blocks, block_size, head_dim, dtype)
    shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
    mode = get_kv_quant_mode(kv_cache_dtype)
    return KVCache(*shape, dtype) if mode == KVQuantMode.NONE else QuantizedKVCache(*shape, dtype, mode)


class QuantizedKVCache(KVCache):
    """`data` holds codes, one byte each; `scales` [num_layers, num_blocks, block_size, 2, num_kv_heads] or None.

    `dtype` is that of the floats that are handed out.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int,
        dtype: str | np.dtype[Any] = "float32",
        mode: KVQuantMode = KVQuantMode.INT8_PER_TOKEN_HEAD,
    ) -> None:  # fmt: skip
        super().__init__(num_layers, num_blocks, block_size, num_kv_heads, head_dim, mode.code_type)
        self.mode, self.dtype = mode, np.dtype(dtype)
        self.scales: Array | None = None
        if mode.is_per_token_head:
            self.scales = np.zeros(self.data.shape[:-1], np.float32)
            self._slot_scales = self.scales.reshape(num_layers, num_blocks * block_size, 2, num_kv_heads)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def _floats(self, codes: Array, scales: Array | None) -> Array:
        return dequantize_kv(codes, scales, np.empty(codes.shape, self.dtype))

    def key(self, layer: int) -> Array:
        """Keys of a layer as floats, [num_blocks, block_size, num_kv_heads, head_dim]: a copy of the whole layer."""
        return self._floats(self.data[layer, :, :, 0], None if self.scales is None else self.scales[layer, :, :, 0])

    def value(self, layer: int) -> Array:
        """Values of a layer, as `key`."""
        return self._floats(self.data[layer, :, :, 1], None if self.scales is None else self.scales[layer, :, :, 1])

    def slots(self, layer: int) -> tuple[Array, Array]:
        """Copies, as flat rows: each [num_blocks * block_size, num_kv_heads, head_dim]."""
        shape = (-1, self.num_kv_heads, self.head_dim)
        return self.key(layer).reshape(shape), self.value(layer).reshape(shape)

    def write(self, layer: int, slot_mapping: Array | slice, k: Array, v: Array) -> None:
        """Quantize k and v, each [T, num_kv_heads, head_dim], and store codes and scales in their slots."""
        for at, (slots, x) in enumerate(((self._key_slots[layer], k), (self._value_slots[layer], v))):
            codes, scales = quantize_kv(x, self.mode)
            slots[slot_mapping] = codes
            if scales is not None:
                self._slot_scales[layer, slot_mapping, at] = scales

    def gather(self, layer: int, block_ids: Array, out: Array) -> None:
        """Whole blocks as floats: block_ids [N] -> out [N, block_size * 2 * num_kv_heads * head_dim]."""
        codes = self.data[layer].take(block_ids, axis=0, mode="clip")
        scales = None if self.scales is None else self.scales[layer].take(block_ids, axis=0, mode="clip")
        dequantize_kv(codes, scales, out.reshape(codes.shape))

    def clear_blocks(self, block_ids: Array) -> None:
        """Zero the blocks. A NaN among the codes or scales cannot be read as padding by whoever gets them next."""
        self.data[:, block_ids] = 0
        if self.scales is not None:
            self.scales[:, block_ids] = 0

    def clear_nan(self, block_ids: Array) -> None:
        """Zero scales that are NaN."""
        if self.scales is not None:
            self.scales[:, block_ids] = np.nan_to_num(self.scales[:, block_ids], nan=0.0)


_SMALLEST_SCALE = np.float32(1e-6)


def quantize_kv(x: Array, mode: KVQuantMode) -> tuple[Array, Array | None]:
    """Codes of the shape of x [..., head_dim], and float32 scales [...], None where the scale is 1.

    int8 codes are rounded to nearest. Upstream's kernel stores a float into an int8 pointer, which cuts the fraction
    off, and so loses a bit: upstream/tests/quantization/test_per_token_kv_cache.py:64 — "INT8 Triton stores truncate".
    Upstream: upstream/vllm/v1/attention/ops/triton_reshape_and_cache_flash.py:139 — `_reshape_cache_per_token_head`.
    """
    if mode == KVQuantMode.FP8_PER_TENSOR:
        return encode_e4m3(x), None
    largest = np.float32(127 if mode == KVQuantMode.INT8_PER_TOKEN_HEAD else E4M3_MAX)
    scales = np.maximum(np.abs(x).max(axis=-1).astype(np.float32) / largest, _SMALLEST_SCALE)
    scaled = x * (1 / scales)[..., None]
    if mode == KVQuantMode.FP8_PER_TOKEN_HEAD:
        return encode_e4m3(scaled), scales
    return np.clip(np.rint(scaled), -128, 127).astype(np.int8), scales


def dequantize_kv(codes: Array, scales: Array | None, out: Array) -> Array:
    """Codes [..., head_dim] times scales [...] -> `out`, the same shape, any float type."""
    if codes.dtype == np.uint8:
        decode_e4m3(codes, out=out)
    else:
        np.copyto(out, codes)
    if scales is not None:
        out *= scales[..., None]
    return out
