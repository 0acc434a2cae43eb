"""The short convolution before a state-space layer. Upstream twin:
`vllm/model_executor/layers/mamba/ops/causal_conv1d.py`.

Each channel looks at itself in the last `K` tokens. The state is the inputs of the last `K - 1` of them.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.attention.backends.mamba_attn import MambaAttentionMetadata
from mini_vllm.layers.activation import silu
from mini_vllm.utils.arrays import Array


def causal_conv1d(
    x: Array, weight: Array, bias: Array | None, conv_state: Array, metadata: MambaAttentionMetadata
) -> Array:
    """silu(sum over k of weight[:, k] * x[t - K + 1 + k] + bias), for all requests of a step.

    Args:
        x: [T, channels]. weight: [channels, K]. bias: [channels].
        conv_state: [num_blocks, K - 1, channels], read and written as `metadata` says.

    Upstream: upstream/vllm/model_executor/layers/mamba/ops/causal_conv1d.py:469 — `causal_conv1d_fn`, `:1071` —
    `causal_conv1d_update`.
    """
    width, out, rows = weight.shape[1], np.empty_like(x), metadata.decode_rows
    if len(rows):
        window = np.concatenate([conv_state[metadata.state_indices_input], x[rows, None]], axis=1)  # [D, K, channels]
        out[rows] = np.einsum("dkc,ck->dc", window, weight)
        conv_state[metadata.state_indices_output] = window[:, 1:]
    for first, last, source, target in metadata.pieces:
        padded = np.concatenate([conv_state[source], x[first:last]])
        windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=0)  # [tokens, channels, K]
        out[first:last] = np.einsum("tck,ck->tc", windows, weight)
        conv_state[target] = padded[last - first :]
    return silu(out if bias is None else out + bias)
