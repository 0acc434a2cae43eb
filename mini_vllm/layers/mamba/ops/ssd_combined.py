"""The recurrence of Mamba-2, a piece of text at a time (state space duality).

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T        a state [head_dim, state_size] for each head
    y_t = h_t C_t + D x_t

Written out, y is attention without a softmax: y_t is the sum over s <= t of exp(sum of dt A after s up to t)
(C_t . B_s) dt_s x_s, and what the state before the piece adds. So a piece is a few products, and no token waits for the
one before.

Upstream twin: `vllm/model_executor/layers/mamba/ops/ssd_combined.py`, for one token `mamba_ssm.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.attention.backends.mamba_attn import MambaAttentionMetadata
from mini_vllm.utils.arrays import Array

CHUNK_SIZE = 64
"""Tokens whose weights on each other are computed at once."""


def chunk_scan(x: Array, dt: Array, A: Array, B: Array, C: Array, state: Array) -> tuple[Array, Array]:
    """A run of L tokens of one request, at most `CHUNK_SIZE` at a time.

    Args:
        x: [L, heads, head_dim]. dt: [L, heads], positive. A: [heads], negative.
        B, C: [L, heads, state_size]. state: [heads, head_dim, state_size], before the run.

    Returns:
        y [L, heads, head_dim] without D, and the state after the run.

    Upstream: upstream/vllm/model_executor/layers/mamba/ops/ssd_combined.py:157 — `mamba_chunk_scan_combined_varlen`.
    """
    y = np.empty_like(x)
    for first in range(0, len(x), CHUNK_SIZE):
        part = slice(first, first + CHUNK_SIZE)
        log_decay = np.cumsum(dt[part] * A, axis=0).T  # [heads, L]: of what was there before the run
        weighted = dt[part, :, None] * x[part]
        between = log_decay[:, :, None] - log_decay[:, None, :]
        between = np.exp(np.where(np.tri(between.shape[1], dtype=bool), between, -np.inf))  # [heads, t, s]
        scores = np.einsum("thn,shn->hts", C[part], B[part]) * between
        y[part] = np.einsum("hts,shp->thp", scores, weighted)
        y[part] += np.einsum("ht,thn,hpn->thp", np.exp(log_decay), C[part], state)
        added = np.einsum("hs,shp,shn->hpn", between[:, -1], weighted, B[part])
        state = np.exp(log_decay[:, -1, None, None]) * state + added
    return y, state


def state_space_scan(
    x: Array, dt: Array, A: Array, B: Array, C: Array, D: Array, ssm_state: Array, metadata: MambaAttentionMetadata
) -> Array:
    """y [T, heads, head_dim] for all requests of a step.

    Args:
        x, dt, A, B, C: as `chunk_scan`, of T tokens. D: [heads].
        ssm_state: [num_blocks, heads, head_dim, state_size], read and written as `metadata` says.

    Upstream: upstream/vllm/model_executor/layers/mamba/ops/mamba_ssm.py:493 — `selective_state_update`, for requests
    with one token.
    """
    y, rows = np.empty_like(x), metadata.decode_rows
    if len(rows):
        decay = np.exp(dt[rows] * A)[:, :, None, None]
        added = (dt[rows, :, None] * x[rows])[..., None] * B[rows][:, :, None, :]
        state = decay * ssm_state[metadata.state_indices_input] + added
        y[rows] = np.einsum("dhpn,dhn->dhp", state, C[rows])
        ssm_state[metadata.state_indices_output] = state
    for first, last, source, target in metadata.pieces:
        part = slice(first, last)
        y[part], ssm_state[target] = chunk_scan(x[part], dt[part], A, B[part], C[part], ssm_state[source])
    return y + D[:, None] * x
