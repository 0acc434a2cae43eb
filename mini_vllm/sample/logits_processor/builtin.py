"""Changes to the logits before a token is chosen: allowed ids, min tokens, logit bias, min-p.

Every function here and in `sample/ops/` (bad words, penalties, top-k and top-p) takes `logits[R, V]` (R rows, one a
request; V the vocabulary), changes it in place, and touches only the rows that asked for it.
Upstream twin: `vllm/v1/sample/logits_processor/builtin.py`.

"Argmax-invariant" is upstream's word for a change that never alters which logit is largest (min-p, top-k, top-p,
temperature); greedy rows skip those. Masks, bias and penalties are not, and come first, for greedy rows too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mini_vllm.sample.ops.logprobs import NEG_INF, softmax


def apply_allowed_token_ids(logits: np.ndarray, allowed: Mapping[int, np.ndarray]) -> None:
    """Mask all ids but the allowed ones. allowed: row -> int64 ids. Twin: `allowed_token_ids_mask` of upstream."""
    for row, ids in allowed.items():
        kept = logits[row, ids]
        logits[row] = NEG_INF
        logits[row, ids] = kept


def apply_min_tokens(
    logits: np.ndarray, min_tokens: Mapping[int, tuple[int, np.ndarray]], output_token_ids: Sequence[list[int]]
) -> None:
    """Mask EOS and stop ids of rows that have not produced `min_tokens` yet. min_tokens: row -> (minimum, ids).

    Twin: upstream/vllm/v1/sample/logits_processor/builtin.py:167 — `MinTokensLogitsProcessor`.
    """
    for row, (minimum, stop_ids) in min_tokens.items():
        if len(output_token_ids[row]) < minimum:
            logits[row, stop_ids] = NEG_INF


def apply_logit_bias(logits: np.ndarray, bias: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> None:
    """Add a number to chosen logits. bias: row -> (ids, values).

    Twin: upstream/vllm/v1/sample/logits_processor/builtin.py:118 — `LogitBiasLogitsProcessor`.
    """
    for row, (ids, values) in bias.items():
        logits[row, ids] += values


def apply_min_p(logits: np.ndarray, min_p: np.ndarray) -> None:
    """Mask tokens less likely than `min_p` times the likeliest. min_p: [R], 0 = off.

    Twin: upstream/vllm/v1/sample/logits_processor/builtin.py:22 — `MinPLogitsProcessor`.
    """
    rows = np.flatnonzero(min_p > 0)
    if rows.size == 0:
        return
    probs = softmax(logits[rows])
    threshold = probs.max(axis=-1, keepdims=True) * min_p[rows, None].astype(probs.dtype)
    logits[rows] = np.where(probs < threshold, NEG_INF, logits[rows])
