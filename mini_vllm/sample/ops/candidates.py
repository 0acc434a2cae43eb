"""A draw from a large vocabulary that touches only the tokens that top-k, top-p and min-p leave.

Row by row: a threshold below which no candidate can lie, found without a sort; the candidates above it; the exact
filters on these few; noise for what is left. The noise of a token does not depend on who else is a candidate
(`token_noise`), so a filter that lets one token more through, or a last bit that differs, changes no other token's
chance. Where nothing is filtered, the winner of the likeliest few says how little noise another token would need, and
only those that have so little run against it (`draw_of_all`).

Upstream's twin in idea is the Triton kernel, which finds a pivot instead of sorting
(`vllm/v1/sample/ops/topk_topp_triton.py`), and for the noise its second runner's, a function of seed, position and
token (`vllm/v1/worker/gpu/sample/gumbel.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

LARGE_VOCABULARY = 1 << 15
"""Vocabularies above this size draw so; smaller ones by V numbers from the stream (`random_sample`)."""
_BLOCKS = 64
"""Rows of the grid that a row of logits is folded into; the maxima of its columns give the threshold."""
_FIRST_GUESS = 256
_FEW, _BINS_PER_OCTAVE = 2048, 64


def draw_key(generator: np.random.Generator) -> int:
    """What a draw from a large vocabulary takes from a request's stream: 64 bits, whatever the filters."""
    return int(generator.integers(0, 1 << 64, dtype=np.uint64))


def skip_draws(generator: np.random.Generator, count: int, vocab_size: int) -> None:
    """Move a stream to where `count` draws leave it."""
    if vocab_size > LARGE_VOCABULARY:
        generator.integers(0, 1 << 64, size=count, dtype=np.uint64)
        return
    for _ in range(count):
        generator.standard_exponential(size=vocab_size)


def token_noise(key: int, ids: np.ndarray, use_fp64: bool = False) -> np.ndarray:
    """Exp(1) numbers, float64, each a function of the draw's key and the token's id alone.

    ids: uint32[n]. 2**32 values, in (0, 23). No two tokens of a draw have the same one: for a given key the hash is a
    bijection. use_fp64: 2**52 values, in (0, 37), the same in their first 32 bits. Upstream's setting of this name
    exchanges 32 random bits for 64, and there it is against ties (upstream/vllm/v1/worker/gpu/sample/gumbel.py:64 —
    `tl_rand64`).
    """
    hashed = token_hash(key, ids)
    uniform = hashed + 0.5
    if use_fp64:
        hashed ^= np.uint32(0x9E3779B9)
        _mix(hashed)
        uniform -= 0.5 - 2.0**-21
        uniform += (hashed >> np.uint32(12)) * 2.0**-20
    uniform *= 2.0**-32
    np.log(uniform, out=uniform)
    return np.negative(uniform, out=uniform)


def token_hash(key: int, ids: np.ndarray) -> np.ndarray:
    """uint32[n]: the larger, the less noise. Two rounds of MurmurHash3's finalizer, one for each half of the key."""
    hashed = ids.astype(np.uint32) + np.uint32(key & 0xFFFFFFFF)
    _mix(hashed)
    hashed ^= np.uint32(key >> 32)
    _mix(hashed)
    return hashed


def _mix(hashed: np.ndarray) -> None:
    """A bijection of 32 bits in which every bit depends on every other."""
    shifted = np.empty_like(hashed)
    for bits, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        np.right_shift(hashed, np.uint32(bits), out=shifted)
        hashed ^= shifted
        hashed *= np.uint32(factor)
    np.right_shift(hashed, np.uint32(16), out=shifted)
    hashed ^= shifted


def draw_among(
    weights: np.ndarray, ids: np.ndarray, generator: np.random.Generator | None, row: int, use_fp64: bool = False
) -> int:
    """The token that wins the race: argmax(w / e). weights: [n], any scale; ids: [n], ascending.

    Raises ValueError where the row has no generator.
    """
    return int(ids[(weights / token_noise(_key_of(generator, row), ids, use_fp64)).argmax()])


def draw_of_all(
    logits: np.ndarray, temperature: float, generator: np.random.Generator | None, row: int, use_fp64: bool = False
) -> int:
    """What `draw_among` draws from all tokens. logits: [V], of which one at least is not masked.

    The likeliest tokens run first. Any other weighs less than `rest`, so that it can win only with noise below
    `rest / best`, and that means a hash above a bound: some hundreds of the vocabulary, whatever the logits are.
    """
    key, vocab_size = _key_of(generator, row), logits.size
    scale, largest = np.asarray(temperature, dtype=logits.dtype), logits.max()
    bound = _lower_bound(logits, _FIRST_GUESS)
    ids = _at_least(logits, bound)
    speeds = np.exp((logits[ids] - largest) / scale) / token_noise(key, ids, use_fp64)
    if bound > -np.inf:
        rest = float(np.exp((bound - largest) / scale))
        least = np.exp(-1.0001 * rest / speeds.max()) * 2.0**32 - 2  # a little below: weights are rounded
        ids = np.union1d(ids, np.flatnonzero(token_hash(key, _all_ids(vocab_size)) >= np.uint32(max(0.0, least))))
        speeds = np.exp((logits[ids] - largest) / scale) / token_noise(key, ids, use_fp64)
    return int(ids[speeds.argmax()])


@lru_cache(maxsize=4)
def _all_ids(vocab_size: int) -> np.ndarray:
    return np.arange(vocab_size, dtype=np.uint32)


def _key_of(generator: np.random.Generator | None, row: int) -> int:
    if generator is None:
        raise ValueError(f"row {row} samples at random but has no generator.")
    return draw_key(generator)


def sample_candidates(
    logits: np.ndarray,
    rows: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray | None,
    top_p: np.ndarray | None,
    min_p: np.ndarray | None,
    generators: Sequence[np.random.Generator | None],
    use_fp64: bool = False,
) -> np.ndarray:
    """One token for each of the given rows of a batch, int64[len(rows)].

    logits: [R, V], not changed. temperature, top_k (0 = off), top_p (1 = off), min_p (0 = off): [R]; None: off for all.
    use_fp64: see `token_noise`.
    """
    chosen = np.empty(len(rows), dtype=np.int64)
    for at, row in enumerate(rows.tolist()):
        k = 0 if top_k is None else int(top_k[row])
        p = 1.0 if top_p is None else float(top_p[row])
        least = 0.0 if min_p is None else float(min_p[row])
        heat = float(temperature[row])
        if k < 1 and p >= 1.0 and least <= 0.0:
            chosen[at] = draw_of_all(logits[row], heat, generators[row], row, use_fp64)
            continue
        ids, weights = candidates(logits[row], heat, k, p, least)
        chosen[at] = draw_among(weights, ids, generators[row], row, use_fp64)
    return chosen


def candidates(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that the filters leave, ids ascending, and their weights: exp of (logit - largest) over temperature.

    logits: [V]. The same set as temperature, min-p, top-k and top-p give one after the other, in this order; of equal
    tokens at the edge of top-k all stay, at the edge of top-p the higher ids (`apply_top_k_top_p`).
    """
    scale = np.asarray(temperature, dtype=logits.dtype)
    largest = logits.max()
    ids, total = None, None
    if min_p > 0.0:
        bound = largest + temperature * np.log(min_p)
        ids = _at_least(logits, bound - 1e-3 * max(1.0, abs(bound)))
        weights = np.exp((logits[ids] - largest) / scale)
        ids = ids[weights >= np.asarray(min_p, dtype=weights.dtype)]
    if 0 < top_k < logits.size:
        ids = _top_k(logits, ids, top_k)
    if ids is None and top_p < 1.0:
        weights = np.exp((logits - largest) / scale)
        total = float(weights.sum(dtype=np.float64))
        ids = _holding_mass(logits, weights, top_p * total)
    if ids is None:
        return np.arange(logits.size, dtype=np.uint32), np.exp((logits - largest) / scale)
    weights = np.exp((logits[ids] - largest) / scale)
    if top_p < 1.0:
        ids, weights = _top_p(ids, weights, top_p, total)
    return ids, weights


def _at_least(logits: np.ndarray, bound: float) -> np.ndarray:
    """Ids of logits at or above the bound; masked tokens never."""
    return np.flatnonzero(logits >= bound if bound > -np.inf else logits > -np.inf)


def _lower_bound(logits: np.ndarray, count: int) -> float:
    """A number that at least `count` logits reach, close to the `count`-th largest; -inf where that is not worth while.

    The row is folded into columns: so many columns whose maxima reach a number, so many logits at least.
    """
    width = logits.size // _BLOCKS
    if count > width // 2:
        return -np.inf
    maxima = logits[: width * _BLOCKS].reshape(_BLOCKS, width).max(axis=0)
    return float(np.partition(maxima, width - count)[width - count])


def _top_k(logits: np.ndarray, ids: np.ndarray | None, k: int) -> np.ndarray:
    if ids is None:
        ids = _at_least(logits, _lower_bound(logits, k))
    if len(ids) <= k:
        return ids
    values = logits[ids]
    return ids[values >= np.partition(values, len(ids) - k)[len(ids) - k]]


def _holding_mass(logits: np.ndarray, weights: np.ndarray, mass: float) -> np.ndarray:
    """The likeliest tokens, at least as many as together weigh more than `mass`."""
    count = _FIRST_GUESS
    while True:
        bound = _lower_bound(logits, count)
        ids = _at_least(logits, bound)
        if bound == -np.inf or float(weights[ids].sum(dtype=np.float64)) > mass * (1 + 1e-6):
            return ids
        count *= 8


def _top_p(ids: np.ndarray, weights: np.ndarray, p: float, total: float | None) -> tuple[np.ndarray, np.ndarray]:
    """The smallest set that reaches p of `total`, which counts tokens that are no longer in `ids` too; None: none are.

    As upstream: tokens are dropped from the least likely up while their cumulated probability is at most 1 - p, and one
    always stays. Of many candidates only those near the edge are sorted.
    """
    whole = float(weights.sum(dtype=np.float64)) if total is None else total
    first, last = _around_edge(weights, p, whole)
    near = np.flatnonzero((weights >= first) & (weights <= last)) if first > 0 else np.flatnonzero(weights <= last)
    above = float(weights[weights > last].sum(dtype=np.float64))
    order = near[np.argsort(weights[near], kind="stable")]
    mass = np.cumsum(weights[order], dtype=np.float64)
    below = whole - above - (mass[-1] if len(mass) else 0.0)
    cumulated = ((mass + below) / whole).astype(weights.dtype)
    most = len(order) - (above == 0.0)
    num_dropped = min(int((cumulated <= np.asarray(1 - p, dtype=weights.dtype)).sum()), most)
    kept = np.sort(np.concatenate([order[num_dropped:], np.flatnonzero(weights > last)]))
    return ids[kept], weights[kept]


def _around_edge(weights: np.ndarray, p: float, whole: float) -> tuple[float, float]:
    """Two weights between which the edge of top-p lies: all above the second stay, all below the first go.

    From a histogram over the logarithms of the weights; (0, inf) where there are few of them.
    """
    if len(weights) <= _FEW:
        return 0.0, np.inf
    bins = np.clip(-np.log2(weights, where=weights > 0, out=np.full(weights.shape, 1e3, weights.dtype)), 0, 63.99)
    bins = (bins * _BINS_PER_OCTAVE).astype(np.int64)
    mass = np.cumsum(np.bincount(bins, weights=weights, minlength=64 * _BINS_PER_OCTAVE))
    edge = int(np.searchsorted(mass, p * whole))
    slack = 1e-5 * whole  # sums of float32 differ in their last digits
    first = int(np.searchsorted(mass, p * whole + slack))
    last = int(np.searchsorted(mass, p * whole - slack))
    lowest, highest = max(edge, first) + 2, min(edge, last) - 1
    lower = 0.0 if lowest >= len(mass) else 2.0 ** -(lowest / _BINS_PER_OCTAVE)
    return lower, 2.0 ** -(highest / _BINS_PER_OCTAVE)
