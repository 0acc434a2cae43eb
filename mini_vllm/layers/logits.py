"""From hidden rows to logits. Upstream twin: `vllm/model_executor/layers/logits_processor.py`."""

from __future__ import annotations

import numpy as np

from mini_vllm.platforms.cpu.memory import aligned_empty
from mini_vllm.platforms.cpu.products import project
from mini_vllm.platforms.cpu.threads import num_shares, one_blas_thread, run_shares
from mini_vllm.utils.arrays import Array


def logits_of(hidden: Array, lm_head: Array, out: Array | None = None) -> Array:
    """Hidden rows [rows, features] times the output embedding [vocab, features] -> [rows, vocab], into `out` if given.

    With few rows `lm_head @ hidden.T` and a transposing copy is faster; with many, the copy costs more than it saves.
    Many rows are shared out among threads.
    """
    shares = num_shares(len(hidden))
    if out is None:
        out = np.empty((len(hidden), len(lm_head)), hidden.dtype)
    if shares == 1 and len(hidden) <= 64:
        logits = aligned_empty((len(lm_head), len(hidden)), hidden.dtype)
        project(lm_head, hidden.T, logits)
        np.copyto(out, logits.T)
        return out
    size = -(-len(hidden) // shares)
    parts = [slice(first, first + size) for first in range(0, len(hidden), size)]
    with one_blas_thread(shares > 1):
        run_shares(lambda part: np.matmul(hidden[part], lm_head.T, out=out[part]), parts)
    return out
