"""The parameters of a batch as arrays. Upstream twin: `vllm/v1/sample/metadata.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mini_vllm.sample.ops.penalties import PenaltyState
from mini_vllm.sampling_params import SamplingParams


@dataclass
class SamplingRow:
    """One request as the sampler sees it. `output_token_ids` is the runner's own list and grows with each step."""

    params: SamplingParams
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: list[int] = field(default_factory=list)
    generator: np.random.Generator | None = None


@dataclass
class SamplingMetadata:
    """The batch's parameters as arrays, built when the batch changes and reused while it does not.

    temperature, top_p, min_p: float32[R]; top_k: int64[R] (0 = off). An array is None where no row uses it, so that
    its step costs nothing. The dicts hold only the rows (by index) that use the feature. `output_token_ids` are live
    lists: what the runner appends is seen at the next step.
    """

    all_greedy: bool
    all_random: bool
    temperature: np.ndarray
    top_k: np.ndarray | None
    top_p: np.ndarray | None
    min_p: np.ndarray | None
    generators: list[np.random.Generator | None]
    output_token_ids: list[list[int]]
    penalties: PenaltyState | None
    min_tokens: dict[int, tuple[int, np.ndarray]]
    logit_bias: dict[int, tuple[np.ndarray, np.ndarray]]
    allowed_token_ids: dict[int, np.ndarray]
    bad_words: dict[int, list[list[int]]]
    num_logprobs: dict[int, int]
    """row -> how many to report (0 = the chosen token alone)."""
    logprob_token_ids: dict[int, list[int]] = field(default_factory=dict)
    """row -> the ids to report beside the chosen token, instead of the likeliest."""

    @property
    def max_num_logprobs(self) -> int | None:
        """The largest number of log-probabilities a row wants; None when none does."""
        return max(self.num_logprobs.values(), default=None)

    @property
    def no_penalties(self) -> bool:
        """True when no row has a penalty."""
        return self.penalties is None

    @property
    def leaves_logits_alone(self) -> bool:
        """True when no step before the greedy choice would change the logits."""
        return not (self.penalties or self.min_tokens or self.logit_bias or self.allowed_token_ids or self.bad_words)

    @classmethod
    def from_rows(cls, rows: Sequence[SamplingRow], vocab_size: int) -> SamplingMetadata:
        """Gather the rows of a batch, in the order of the logits' rows."""
        params = [row.params for row in rows]
        greedy = [p.is_greedy for p in params]
        top_k = np.array([p.top_k if 0 < p.top_k < vocab_size else 0 for p in params], dtype=np.int64)
        top_p = np.array([p.top_p for p in params], dtype=np.float32)
        min_p = np.array([p.min_p for p in params], dtype=np.float32)
        wanted = {i: n for i, p in enumerate(params) if (n := p.num_logprobs) is not None}
        return cls(
            all_greedy=all(greedy),
            all_random=not any(greedy),
            temperature=np.array([p.temperature for p in params], dtype=np.float32),
            top_k=top_k if top_k.any() else None,
            top_p=top_p if (top_p < 1).any() else None,
            min_p=min_p if min_p.any() else None,
            generators=[row.generator for row in rows],
            output_token_ids=[row.output_token_ids for row in rows],
            penalties=_penalty_state(rows, vocab_size),
            min_tokens=_min_tokens(rows, vocab_size),
            logit_bias={i: _bias_arrays(p.logit_bias) for i, p in enumerate(params) if p.logit_bias},
            allowed_token_ids={i: np.array(p.allowed_token_ids) for i, p in enumerate(params) if p.allowed_token_ids},
            bad_words={i: p.bad_words_token_ids for i, p in enumerate(params) if p.bad_words_token_ids},
            num_logprobs={i: vocab_size if n == -1 else min(n, vocab_size) for i, n in wanted.items()},
            logprob_token_ids={i: p.logprob_token_ids for i, p in enumerate(params) if p.logprob_token_ids},
        )


def _bias_arrays(bias: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(bias), dtype=np.int64), np.array(list(bias.values()), dtype=np.float32)


def _min_tokens(rows: Sequence[SamplingRow], vocab_size: int) -> dict[int, tuple[int, np.ndarray]]:
    found = {}
    for i, row in enumerate(rows):
        if len(row.output_token_ids) < row.params.min_tokens:
            ids = [t for t in sorted(row.params.all_stop_token_ids) if 0 <= t < vocab_size]
            found[i] = (row.params.min_tokens, np.array(ids, dtype=np.int64))
    return found


def _penalty_state(rows: Sequence[SamplingRow], vocab_size: int) -> PenaltyState | None:
    chosen = [
        i
        for i, row in enumerate(rows)
        if row.params.presence_penalty or row.params.frequency_penalty or row.params.repetition_penalty != 1.0
    ]
    if not chosen:
        return None
    params = [rows[i].params for i in chosen]
    seen = np.zeros((len(chosen), vocab_size), dtype=bool)
    for at, i in enumerate(chosen):
        seen[at, np.asarray(rows[i].prompt_token_ids, dtype=np.int64)] = True
    return PenaltyState(
        rows=np.array(chosen),
        repetition=np.array([[p.repetition_penalty] for p in params], dtype=np.float32),
        frequency=np.array([[p.frequency_penalty] for p in params], dtype=np.float32),
        presence=np.array([[p.presence_penalty] for p in params], dtype=np.float32),
        seen=seen,
        counts=np.zeros((len(chosen), vocab_size), dtype=np.int32),
        num_counted=[0] * len(chosen),
    )
