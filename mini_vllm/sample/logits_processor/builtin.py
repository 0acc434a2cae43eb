"""Changes to the logits before a token is chosen: masks, biases, penalties, min-p, top-k, top-p.

Every function takes `logits[R, V]` (R rows, one a request; V the vocabulary), changes it in place, and touches only
the rows that asked for it. Upstream twins: `vllm/v1/sample/logits_processor/builtin.py` (min tokens, logit bias,
min-p), `vllm/v1/sample/ops/` (bad words, penalties, top-k and top-p).

"Argmax-invariant" is upstream's word for a change that never alters which logit is largest (min-p, top-k, top-p,
temperature); greedy rows skip those. Masks, bias and penalties are not, and come first, for greedy rows too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

NEG_INF = -np.inf


def apply_allowed_token_ids(logits: np.ndarray, allowed: Mapping[int, np.ndarray]) -> None:
    """Mask all ids but the allowed ones. allowed: row -> int64 ids. Twin: `allowed_token_ids_mask` of upstream."""
    for row, ids in allowed.items():
        kept = logits[row, ids]
        logits[row] = NEG_INF
        logits[row, ids] = kept


def apply_bad_words(
    logits: np.ndarray, bad_words: Mapping[int, list[list[int]]], output_token_ids: Sequence[list[int]]
) -> None:
    """Mask the last id of each bad word where the output so far ends with the ids before it.

    Twin: upstream/vllm/v1/sample/ops/bad_words.py:30 — `apply_bad_words`.
    """
    for row, words in bad_words.items():
        past = output_token_ids[row]
        for *prefix, last in words:
            if not prefix or past[-len(prefix) :] == prefix:
                logits[row, last] = NEG_INF


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


@dataclass
class PenaltyState:
    """Token counts of the rows that have a penalty, brought up to date by the tokens that are new.

    rows: int64[P], the rows of the batch concerned; repetition, frequency, presence: [P, 1].
    seen: bool[P, V], the token stands in the prompt or the output; counts: int32[P, V], times in the output.
    Upstream counts everything again each step (vllm/model_executor/layers/utils.py — `apply_penalties`); the numbers
    are the same.
    """

    rows: np.ndarray
    repetition: np.ndarray
    frequency: np.ndarray
    presence: np.ndarray
    seen: np.ndarray
    counts: np.ndarray
    num_counted: list[int] = field(default_factory=list)

    def update(self, output_token_ids: Sequence[list[int]]) -> None:
        """Count what each row has produced since the last call."""
        for i, row in enumerate(self.rows):
            tokens = output_token_ids[row]
            if len(tokens) < self.num_counted[i]:
                raise ValueError(f"row {row}: the output shrank from {self.num_counted[i]} to {len(tokens)} tokens")
            new = tokens[self.num_counted[i] :]
            np.add.at(self.counts[i], new, 1)
            self.seen[i, new] = True
            self.num_counted[i] = len(tokens)


def apply_penalties(logits: np.ndarray, state: PenaltyState) -> None:
    """Repetition (prompt and output), then frequency and presence (output only).

    Repetition divides a positive logit and multiplies a negative one, so that a penalty > 1 always lowers it.
    Twin: upstream/vllm/model_executor/layers/utils.py:51 — `apply_penalties`.
    """
    rows = logits[state.rows]
    penalty = np.where(state.seen, state.repetition, 1.0).astype(rows.dtype)
    rows = np.where(rows > 0, rows / penalty, rows * penalty)
    rows -= (state.frequency * state.counts).astype(rows.dtype)
    rows -= (state.presence * (state.counts > 0)).astype(rows.dtype)
    logits[state.rows] = rows


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis; the maximum is subtracted first, so that `exp` cannot overflow."""
    probs = logits - logits.max(axis=-1, keepdims=True)
    np.exp(probs, out=probs)
    probs /= probs.sum(axis=-1, keepdims=True)
    return probs


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


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


def apply_top_k_top_p(logits: np.ndarray, top_k: np.ndarray | None, top_p: np.ndarray | None) -> None:
    """Keep the `top_k` likeliest tokens, then of these the smallest set whose probability reaches `top_p`.

    top_k: int[R], 0 (or V and more) = off; top_p: float[R], 1 = off; None = off for all rows. Ties at the k-th value
    all stay. Among equal tokens at the edge of top-p as many stay as are needed, here the higher ids; upstream leaves
    it to a sort that is not stable (upstream/vllm/v1/sample/ops/topk_topp_sampler.py:328).
    """
    vocab_size = logits.shape[1]
    if top_k is not None:
        rows = np.flatnonzero((top_k > 0) & (top_k < vocab_size))
        if rows.size:
            logits[rows] = _top_k_masked(logits[rows], top_k[rows])
    if top_p is not None:
        rows = np.flatnonzero(top_p < 1)
        if rows.size:
            logits[rows] = _top_p_masked(logits[rows], top_p[rows])


def _top_k_masked(logits: np.ndarray, k: np.ndarray) -> np.ndarray:
    """logits with everything below each row's k-th largest value masked; O(V) by `np.partition`, no sort."""
    vocab_size = logits.shape[1]
    kths = np.unique(vocab_size - k)
    partitioned = np.partition(logits, kths, axis=-1)
    threshold = np.take_along_axis(partitioned, (vocab_size - k)[:, None], axis=-1)
    return np.where(logits < threshold, NEG_INF, logits)


def _top_p_masked(logits: np.ndarray, p: np.ndarray) -> np.ndarray:
    """logits with the tail masked: tokens whose cumulated probability, from the least likely up, is <= 1 - p."""
    vocab_size = logits.shape[1]
    # After top-k most of a row is -inf. Only the largest number of finite values in any row has to be sorted.
    width = max(1, int(np.isfinite(logits).sum(axis=-1).max()))
    tail = np.partition(logits, vocab_size - width, axis=-1)[:, -width:] if width < vocab_size else logits
    ascending = np.sort(tail, axis=-1)
    cumulated = np.cumsum(softmax(ascending), axis=-1, dtype=np.float64).astype(logits.dtype)
    edge = (1 - p.astype(logits.dtype))[:, None]
    num_masked = np.minimum((cumulated <= edge).sum(axis=-1), width - 1)  # at least one token stays
    cutoff = np.take_along_axis(ascending, num_masked[:, None], axis=-1)
    masked = logits < cutoff
    # Tokens equal to the cutoff: the sort may have put some of them on the masked side.
    num_ties = num_masked - (ascending < cutoff).sum(axis=-1)
    for row in np.flatnonzero(num_ties > 0):
        ties = np.flatnonzero(logits[row] == cutoff[row])
        masked[row, ties[: num_ties[row]]] = True
    return np.where(masked, NEG_INF, logits)
