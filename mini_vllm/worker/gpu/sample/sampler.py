"""The settings that can be drawn where the logits are: greedy, temperature, top-k, top-p.

All others (penalties, log-probabilities, grammars, logits processors) take their rows to the host, where
`sample/sampler.py` knows everything; which way a row goes depends on its own request alone.
Upstream twin: `vllm/v1/worker/gpu/sample/sampler.py`, which does all of it on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.gpu.buffer_utils import to_device
from mini_vllm.worker.states import CachedRequestState


def can_stay(params: SamplingParams) -> bool:
    """True where a request's tokens can be drawn on the device."""
    return not (
        params.num_logprobs is not None
        or params.has_penalty
        or params.allowed_token_ids
        or params.bad_words_token_ids
        or params.uses_logits_processors
        or params.logprob_token_ids
        or params.thinking_token_budget is not None
    )


@dataclass
class DeviceSampling:
    """Settings of rows as tensors [R]. top_k, top_p: None where no row has one; `filtered`: the rows that do."""

    temperature: torch.Tensor
    seeds: torch.Tensor
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None

    @classmethod
    def of(cls, states: Sequence[CachedRequestState], vocab_size: int, device: torch.device) -> DeviceSampling:
        """The settings of these requests; a seed of its own, or one of the engine's."""
        params = [state.sampling_params for state in states]
        greedy = [p.is_greedy for p in params]
        temperature = np.array([0.0 if g else p.temperature for g, p in zip(greedy, params, strict=True)], np.float32)
        top_k = np.array([p.top_k if 0 < p.top_k < vocab_size and not g else vocab_size
                          for g, p in zip(greedy, params, strict=True)], np.int64)  # fmt: skip
        top_p = np.array([1.0 if g else p.top_p for g, p in zip(greedy, params, strict=True)], np.float32)
        seeds = np.array([_seed(state) for state in states], np.int64)
        return cls(
            to_device(temperature, device),
            to_device(seeds, device),
            to_device(top_k, device) if (top_k < vocab_size).any() else None,
            to_device(top_p, device) if (top_p < 1).any() else None,
        )


def _seed(state: CachedRequestState) -> int:
    """31 bits of the request's seed."""
    if state.seed is None:
        return 0
    sequence = state.seed if isinstance(state.seed, np.random.SeedSequence) else np.random.SeedSequence(state.seed)
    return int(sequence.generate_state(1)[0]) >> 1


def apply_top_k_top_p(logits: torch.Tensor, sampling: DeviceSampling) -> torch.Tensor:
    """Minus infinity outside of the top k tokens, and of the smallest set whose probabilities reach p. Copies.

    Upstream: upstream/vllm/v1/sample/ops/topk_topp_sampler.py:328 — `apply_top_k_top_p_pytorch`.
    """
    if sampling.top_k is None and sampling.top_p is None:
        return logits
    values, order = logits.float().sort(dim=-1)
    if sampling.top_k is not None:
        smallest = values.gather(1, (values.shape[1] - sampling.top_k).unsqueeze(1))
        values = values.masked_fill(values < smallest, float("-inf"))
    if sampling.top_p is not None:
        warm = torch.where(sampling.temperature == 0, 1.0, sampling.temperature).unsqueeze(1)
        below = (values / warm).softmax(dim=-1).cumsum(dim=-1)
        out = below <= (1 - sampling.top_p).unsqueeze(1)
        out[:, -1] = False  # the likeliest stays
        values = values.masked_fill(out, float("-inf"))
    return torch.empty_like(values).scatter_(1, order, values)
