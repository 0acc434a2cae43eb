"""Three checkpoint layouts of 4- and 8-bit weights, and ours: how eight nibbles lie in an int32.

| Layout | codes | packed along | order in an int32 |
|---|---|---|---|
| compressed-tensors | [out, in / 8] | inputs | sequential |
| GPTQ | [in / 8, out] | inputs | sequential |
| AWQ | [in, out / 8] | outputs | 0, 2, 4, 6, 1, 3, 5, 7 |
| ours | uint8 [out, in / 2] | inputs | sequential, two in a byte |

A little-endian int32 with eight sequential nibbles is four of our bytes, so the first needs no work, and the second
only a transposition. Upstream twin: `vllm/model_executor/layers/quantization/utils/quant_utils.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.layers.quantization.primitives import pack_nibbles, unpack_nibbles
from mini_vllm.utils.arrays import Array

AWQ_ORDER = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}
"""Place k of an int32 holds column AWQ_ORDER[k] of its group.
Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:794 — `awq_pack`."""


def unpack_int32(packed: Array, bits: int) -> Array:
    """int32 [..., n] -> unsigned codes [..., n * 32 / bits], uint8, sequential along the last axis.

    Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:443 —
    `unpack_quantized_values_into_int32`.
    """
    our_bytes = np.ascontiguousarray(packed, "<i4").view(np.uint8)
    return unpack_nibbles(our_bytes) if bits == 4 else our_bytes


def pack_int32(codes: Array, bits: int) -> Array:
    """Unsigned codes [..., n] -> int32 [..., n * bits / 32], sequential along the last axis.

    Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:421 —
    `pack_quantized_values_into_int32`.
    """
    per_word = 32 // bits
    if codes.shape[-1] % per_word:
        raise ValueError(f"{per_word} codes share an int32, so their number must divide by it, got {codes.shape[-1]}")
    return np.ascontiguousarray(ours_from_codes(codes, bits)).view("<i4")


def ours_from_int32(packed: Array) -> Array:
    """int32 [out, in * bits / 32] -> uint8 [out, in * bits / 8]: the same bytes."""
    return np.ascontiguousarray(packed, "<i4").view(np.uint8)


def ours_from_codes(codes: Array, bits: int) -> Array:
    """Unsigned codes [out, in] -> uint8 [out, in * bits / 8]."""
    return pack_nibbles(codes) if bits == 4 else codes.astype(np.uint8)


def gptq_unpack(qweight: Array, bits: int) -> Array:
    """int32 [in * bits / 32, out] -> codes [in, out].

    Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:785 — `gptq_pack` — the way there.
    """
    return unpack_int32(qweight.T, bits).T


def gptq_pack(codes: Array, bits: int) -> Array:
    """Codes [in, out] -> int32 [in * bits / 32, out]."""
    return np.ascontiguousarray(pack_int32(codes.T, bits).T)


def awq_unpack(qweight: Array, bits: int = 4) -> Array:
    """int32 [in, out * bits / 32] -> codes [in, out], in their own order again.

    Upstream: upstream/vllm/model_executor/layers/quantization/awq_marlin.py:90 — `_convert_awq_to_standard_format`.
    """
    codes = unpack_int32(qweight, bits).reshape(*qweight.shape, -1)
    return codes[..., np.argsort(AWQ_ORDER[bits])].reshape(len(qweight), -1)


def awq_pack(codes: Array, bits: int = 4) -> Array:
    """Codes [in, out] -> int32 [in, out * bits / 32]."""
    order = AWQ_ORDER[bits]
    return pack_int32(codes.reshape(len(codes), -1, len(order))[..., order].reshape(codes.shape), bits)
