"""Drafts against logits: which are accepted, what comes instead of the first that is not. Arrays alone, no parameters.

Upstream has these functions in `vllm/v1/sample/rejection_sampler.py`, and kernels below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops.logprobs import softmax
from mini_vllm.sampling_params import SAMPLING_EPS
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
from mini_vllm.utils.arrays import Array

PLACEHOLDER_TOKEN_ID = -1


def rejection_sample(
    metadata: SpecDecodeMetadata,
    draft_probs: Array | None,
    target_logits: Array,
    bonus_token_ids: Array,
    sampling_metadata: SamplingMetadata,
    synthetic_conditional_rates: Array | None = None,
) -> Array:
    """Tokens of each request, [B, max_spec_len + 1], padded with -1.

    Args:
        target_logits [T, V]: after all sampling parameters. bonus_token_ids [B].
        synthetic_conditional_rates [k]: accept a draft at these rates by its position, whatever it is.

    Upstream: upstream/vllm/v1/sample/rejection_sampler.py:392 — `rejection_sample`.
    """
    draft_ids, num_requests = metadata.draft_token_ids, len(metadata.num_draft_tokens)
    output = np.full((num_requests, metadata.max_spec_len + 1), PLACEHOLDER_TOKEN_ID, np.int64)
    of, position = metadata.request_of_draft, metadata.position_of_draft
    all_greedy, synthetic = sampling_metadata.all_greedy, synthetic_conditional_rates is not None
    is_random = np.zeros(num_requests, bool) if all_greedy else sampling_metadata.temperature >= SAMPLING_EPS
    instead = target_logits.argmax(axis=-1) if len(target_logits) else draft_ids[:0]
    accepted = instead == draft_ids
    uniform = None
    if synthetic or not all_greedy:
        uniform = generate_uniform_probs(metadata.num_draft_tokens, sampling_metadata.generators)
    target_probs = None
    if is_random.any() and len(draft_ids):
        assert uniform is not None
        target_probs = softmax(target_logits)
        rows = np.arange(len(draft_ids))
        p = target_probs[rows, draft_ids]
        q = np.ones_like(p) if draft_probs is None else draft_probs[rows, draft_ids]
        accepted = np.where(is_random[of], (q > 0) & (p >= uniform * q), accepted)
    if synthetic_conditional_rates is not None:
        assert uniform is not None
        accepted = uniform < synthetic_conditional_rates[position]
    num_accepted = count_accepted(metadata, accepted)
    output[of, position] = draft_ids
    if target_probs is not None:
        first = _first_rejected(metadata, num_accepted, is_random)
        recovered = sample_recovered_tokens(
            first, of, draft_ids, draft_probs, target_probs, sampling_metadata.generators
        )
        instead = instead.copy()
        instead[first] = recovered
    _finish_rows(output, metadata, num_accepted, instead, bonus_token_ids)
    return output


def count_accepted(metadata: SpecDecodeMetadata, accepted: Array) -> Array:
    """Drafts of each request before the first that is not accepted, [B]. accepted: bool[T]."""
    table = np.zeros((len(metadata.num_draft_tokens), metadata.max_spec_len + 1), bool)
    table[metadata.request_of_draft, metadata.position_of_draft] = accepted
    return table.argmin(axis=1)


def _first_rejected(metadata: SpecDecodeMetadata, num_accepted: Array, wanted: Array) -> Array:
    """Among the T drafts, the first rejected one of each wanted request that has one."""
    counts = np.array(metadata.num_draft_tokens)
    chosen = np.flatnonzero((num_accepted < counts) & wanted)
    return (metadata.cu_num_draft_tokens - counts)[chosen] + num_accepted[chosen]


def _finish_rows(
    output: Array, metadata: SpecDecodeMetadata, num_accepted: Array, instead: Array, bonus_token_ids: Array
) -> None:
    """Behind the accepted drafts the token that comes instead of the next one, or the bonus; then nothing."""
    counts = np.array(metadata.num_draft_tokens)
    last = np.array(bonus_token_ids)
    short = np.flatnonzero(num_accepted < counts)
    last[short] = instead[(metadata.cu_num_draft_tokens - counts)[short] + num_accepted[short]]
    columns = np.arange(output.shape[1])
    output[columns > num_accepted[:, None]] = PLACEHOLDER_TOKEN_ID
    output[np.arange(len(output)), num_accepted] = last


def generate_uniform_probs(num_draft_tokens: Sequence[int], generators: Sequence[Any]) -> Array:
    """A number in [0, 1) for each draft, [T] float64, from its request's own stream; a request without drafts draws
    none. Greedy requests have no stream, and 0.5.

    Of float32 one in 16 million is exactly 0, and accepts a draft that the target would never say.

    Upstream: upstream/vllm/v1/sample/rejection_sampler.py:604 — `generate_uniform_probs`.
    """
    drawn = [
        np.full(count, 0.5) if generator is None else generator.random(count)
        for count, generator in zip(num_draft_tokens, generators, strict=True)
        if count
    ]
    return np.concatenate(drawn) if drawn else np.zeros(0)


def sample_recovered_tokens(
    drafts: Array, request_of_draft: Array, draft_token_ids: Array, draft_probs: Array | None, target_probs: Array,
    generators: Sequence[Any],
) -> Array:  # fmt: skip
    """A draw from max(p - q, 0) for each of these drafts, which may be one of each request; it need not be normalized.

    Args:
        drafts [N]: among the T drafts. draft_probs, target_probs [T, V].

    Upstream: upstream/vllm/v1/sample/rejection_sampler.py:659 — `sample_recovered_tokens`, which draws for all drafts,
    with the same noise for those of a request.
    """
    surplus = target_probs[drafts]
    if draft_probs is None:
        surplus[np.arange(len(drafts)), draft_token_ids[drafts]] = 0.0
    else:
        surplus = np.maximum(surplus - draft_probs[drafts], 0.0)
        same = surplus.max(axis=-1) == 0.0  # p is q but for rounding
        surplus[same] = target_probs[drafts[same]]
    noise = np.empty(surplus.shape)
    for at, request in enumerate(request_of_draft[drafts].tolist()):
        generators[request].standard_exponential(out=noise[at])
    np.divide(surplus, noise, out=noise)
    return noise.argmax(axis=-1)
