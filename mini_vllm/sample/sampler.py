"""From logits to tokens, for a whole batch at once.

Upstream twin: upstream/vllm/v1/sample/sampler.py:20 — `Sampler`, `vllm/v1/sample/metadata.py` — `SamplingMetadata`.
The order is upstream's:

1. raw log-probabilities, where a request wants them: of the model's logits, before any change
2. allowed token ids, bad words, min tokens, logit bias
3. penalties: repetition, frequency, presence
4. greedy rows: argmax, and nothing further
5. the others: temperature, min-p, top-k, top-p, softmax, one draw

A draw is `argmax(p / e)` with `e` exponential noise, one number a token: token i wins with probability p[i]. Each
request has its own stream (`numpy.random.Generator`), so that its tokens do not depend on its neighbours in the batch.
Upstream draws the unseeded rows from one shared stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mini_vllm.sample.logits_processor import builtin as lp
from mini_vllm.sampling_params import SAMPLING_EPS, SamplingParams


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
    penalties: lp.PenaltyState | None
    min_tokens: dict[int, tuple[int, np.ndarray]]
    logit_bias: dict[int, tuple[np.ndarray, np.ndarray]]
    allowed_token_ids: dict[int, np.ndarray]
    bad_words: dict[int, list[list[int]]]
    num_logprobs: dict[int, int]
    """row -> how many to report (0 = the chosen token alone)."""

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
        wanted = {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None}
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
        )


def _bias_arrays(bias: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(bias), dtype=np.int64), np.array(list(bias.values()), dtype=np.float32)


def _min_tokens(rows: Sequence[SamplingRow], vocab_size: int) -> dict[int, tuple[int, np.ndarray]]:
    found = {}
    for i, row in enumerate(rows):
        if len(row.output_token_ids) < row.params.min_tokens:
            ids = [t for t in sorted(row.params.all_stop_token_ids) if t < vocab_size]
            found[i] = (row.params.min_tokens, np.array(ids, dtype=np.int64))
    return found


def _penalty_state(rows: Sequence[SamplingRow], vocab_size: int) -> lp.PenaltyState | None:
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
    return lp.PenaltyState(
        rows=np.array(chosen),
        repetition=np.array([[p.repetition_penalty] for p in params], dtype=np.float32),
        frequency=np.array([[p.frequency_penalty] for p in params], dtype=np.float32),
        presence=np.array([[p.presence_penalty] for p in params], dtype=np.float32),
        seen=seen,
        counts=np.zeros((len(chosen), vocab_size), dtype=np.int32),
        num_counted=[0] * len(chosen),
    )


@dataclass
class SamplerOutput:
    """sampled_token_ids: int64[R]. logprobs: per row a dict token id -> (log-probability, rank), the chosen token
    first, then the likeliest in order; {} for a row that asked for none; None when no row asked. errors: rows left
    with no token to choose from (every one masked), with the reason."""

    sampled_token_ids: np.ndarray
    logprobs: list[dict[int, tuple[float, int]]] | None = None
    errors: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Chooses the next token of every row. Holds no state: the streams belong to the requests."""

    def forward(self, logits: np.ndarray, metadata: SamplingMetadata) -> SamplerOutput:
        """logits: [R, V], not changed. Computed in float32, in float64 where the model runs in it.

        Rows with NaN are the caller's business: the runner takes them out first.
        """
        if metadata.all_greedy and metadata.leaves_logits_alone and not metadata.num_logprobs:
            return SamplerOutput(logits.argmax(axis=-1))
        if logits.dtype not in (np.float32, np.float64):
            logits = logits.astype(np.float32)
        # A row's sum is the same whatever its neighbours are: each row is reduced by itself.
        raw_logprobs = lp.log_softmax(logits[list(metadata.num_logprobs)]) if metadata.num_logprobs else None
        errors: dict[int, str] = {}
        if not metadata.leaves_logits_alone:
            logits = self.apply_logits_processors(logits.copy(), metadata)
            for row in np.flatnonzero(np.isneginf(logits).all(axis=-1)):
                errors[int(row)] = "every token is masked: allowed_token_ids, bad_words and min_tokens leave none"
                logits[row] = 0.0
        sampled = self.sample_batch(logits, metadata)
        logprobs = None if raw_logprobs is None else self.gather_logprobs(raw_logprobs, sampled, metadata)
        return SamplerOutput(sampled, logprobs, errors)

    __call__ = forward

    @staticmethod
    def apply_logits_processors(logits: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """Steps 2 and 3, in place (upstream/vllm/v1/sample/sampler.py:366)."""
        lp.apply_allowed_token_ids(logits, metadata.allowed_token_ids)
        lp.apply_bad_words(logits, metadata.bad_words, metadata.output_token_ids)
        lp.apply_min_tokens(logits, metadata.min_tokens, metadata.output_token_ids)
        lp.apply_logit_bias(logits, metadata.logit_bias)
        if metadata.penalties is not None:
            metadata.penalties.update(metadata.output_token_ids)
            lp.apply_penalties(logits, metadata.penalties)
        return logits

    def sample_batch(self, logits: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """Steps 4 and 5 (upstream/vllm/v1/sample/sampler.py:238 — `Sampler.sample`). Returns int64[R].

        Upstream computes both choices for all rows of a mixed batch and picks with `torch.where`; here the random
        choice is computed for the random rows alone.
        """
        if metadata.all_greedy:
            return logits.argmax(axis=-1)
        random_rows = np.flatnonzero(metadata.temperature >= SAMPLING_EPS)
        filtered = self.apply_random_filters(logits[random_rows], random_rows, metadata)
        chosen = random_sample(lp.softmax(filtered), [metadata.generators[row] for row in random_rows])
        if metadata.all_random:
            return chosen
        sampled = logits.argmax(axis=-1)
        sampled[random_rows] = chosen
        return sampled

    @staticmethod
    def apply_random_filters(logits: np.ndarray, rows: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """Temperature, min-p, top-k, top-p, in place. logits: [len(rows), V], the given rows of the batch."""
        logits /= metadata.temperature[rows, None].astype(logits.dtype)
        if metadata.min_p is not None:
            lp.apply_min_p(logits, metadata.min_p[rows])
        top_k = None if metadata.top_k is None else metadata.top_k[rows]
        top_p = None if metadata.top_p is None else metadata.top_p[rows]
        lp.apply_top_k_top_p(logits, top_k, top_p)
        return logits

    @staticmethod
    def gather_logprobs(
        raw_logprobs: np.ndarray, sampled: np.ndarray, metadata: SamplingMetadata
    ) -> list[dict[int, tuple[float, int]]]:
        """The chosen token and the likeliest ones of each row that asked, with ranks from 1.

        raw_logprobs: [rows that asked, V]. The chosen token's rank counts the tokens at least as likely, itself
        included, as upstream does (upstream/vllm/v1/sample/ops/logprobs.py:11 — `batched_count_greater_than`).
        """
        gathered: list[dict[int, tuple[float, int]]] = [{} for _ in sampled]
        for values, (row, count) in zip(raw_logprobs, metadata.num_logprobs.items(), strict=True):
            token = int(sampled[row])
            entry = {token: (float(values[token]), int((values >= values[token]).sum()))}
            for rank, top in enumerate(_largest(values, count), start=1):
                entry[int(top)] = (float(values[top]), rank)
            gathered[row] = entry
        return gathered

    def sample(self, logits: np.ndarray, params: SamplingParams, rng: np.random.Generator | None = None) -> int:
        """One token for one request: `logits[V]`. Without `rng`, a fresh stream from `params.seed`."""
        if np.ndim(logits) != 1:
            raise ValueError(f"logits must have shape [V], got {np.shape(logits)}.")
        row = SamplingRow(params, generator=rng if rng is not None else np.random.default_rng(params.seed))
        metadata = SamplingMetadata.from_rows([row], len(logits))
        return int(self.forward(np.asarray(logits)[None, :], metadata).sampled_token_ids[0])


def random_sample(probs: np.ndarray, generators: Sequence[np.random.Generator | None]) -> np.ndarray:
    """One draw per row: argmax(p / e), e ~ Exp(1) from the row's own stream. probs: [R, V]. Returns int64[R].

    Twin: upstream/vllm/v1/sample/ops/topk_topp_sampler.py:395 — `random_sample`. The noise is float64, V numbers a
    draw, so that the stream stands at the same place whichever filters were on.
    """
    noise = np.empty(probs.shape, dtype=np.float64)
    for row, generator in enumerate(generators):
        if generator is None:
            raise ValueError(f"row {row} samples at random but has no generator.")
        generator.standard_exponential(out=noise[row])
    np.divide(probs, noise, out=noise)
    return noise.argmax(axis=-1)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest, largest first; ties in order of the index."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    threshold = np.partition(values, -count)[-count]
    candidates = np.flatnonzero(values >= threshold)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]
