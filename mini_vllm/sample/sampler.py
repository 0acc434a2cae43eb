"""From logits to tokens, for a whole batch at once.

Upstream twin: upstream/vllm/v1/sample/sampler.py:20 — `Sampler`. The order is upstream's:

1. what a request wants to know of the model's logits, before any change (`logprobs_mode` may want it after step 5)
2. allowed token ids, bad words, logits processors that may change the likeliest token (min tokens, logit bias, custom)
3. penalties: repetition, frequency, presence; then the end of a thinking that has used up its budget
4. greedy rows: argmax, and nothing further
5. the others: temperature, the other logits processors (min-p, custom), top-k, top-p, softmax, one draw

A draw is `argmax(p / e)` with `e` exponential noise, one number a token: token i wins with probability p[i]. Of a large
vocabulary only the tokens that the filters leave get theirs (`sample/ops/candidates.py`). Each request has its own
stream (`numpy.random.Generator`), so that its tokens do not depend on its neighbours in the batch.
Upstream draws the unseeded rows from one shared stream.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mini_vllm.outputs import SamplerOutput
from mini_vllm.sample.logits_processor.builtin import apply_allowed_token_ids, apply_min_p
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.bad_words import apply_bad_words
from mini_vllm.sample.ops.candidates import LARGE_VOCABULARY, sample_candidates
from mini_vllm.sample.ops.logprobs import log_softmax, softmax, top_logprobs
from mini_vllm.sample.ops.penalties import apply_penalties
from mini_vllm.sample.ops.topk_topp_sampler import apply_top_k_top_p, random_sample
from mini_vllm.sampling_params import SAMPLING_EPS, SamplingParams


class Sampler:
    """Chooses the next token of every row. Holds no state: the streams belong to the requests.

    Attributes:
        logprobs_mode, use_fp64_gumbel: see `ModelConfig`.
    """

    logprobs_mode = "raw_logprobs"
    use_fp64_gumbel = False

    def forward(self, logits: np.ndarray, metadata: SamplingMetadata) -> SamplerOutput:
        """logits: [R, V], not changed. Computed in float32, in float64 where the model runs in it.

        Rows with NaN are the caller's business: the runner takes them out first.
        """
        if metadata.all_greedy and metadata.leaves_logits_alone and not metadata.num_logprobs:
            return SamplerOutput(logits.argmax(axis=-1))
        if logits.dtype not in (np.float32, np.float64):
            logits = logits.astype(np.float32)
        # A row's sum is the same whatever its neighbours are: each row is reduced by itself.
        wanted = list(metadata.num_logprobs)
        reported = self.compute_logprobs(logits[wanted]) if wanted and self.logprobs_mode.startswith("raw") else None
        errors: dict[int, str] = {}
        if not metadata.leaves_logits_alone:
            logits = self.apply_logits_processors(logits.copy(), metadata)
            for row in np.flatnonzero(np.isneginf(logits).all(axis=-1)):
                errors[int(row)] = (
                    "every token is masked: allowed_token_ids, bad_words, min_tokens and a grammar leave none"
                )
                logits[row] = 0.0
        if wanted and reported is None:
            if metadata.has_custom_filters:
                logits, metadata = self._filtered_once(logits, metadata)
            reported = self.compute_logprobs(self.processed_logits(logits, metadata, np.array(wanted)))
        sampled = self.sample_batch(logits, metadata)
        logprobs = None if reported is None else self.gather_logprobs(reported, sampled, metadata)
        return SamplerOutput(sampled, logprobs, errors)

    __call__ = forward

    @staticmethod
    def apply_logits_processors(logits: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """Steps 2 and 3, in place (upstream/vllm/v1/sample/sampler.py:366)."""
        apply_allowed_token_ids(logits, metadata.allowed_token_ids)
        apply_bad_words(logits, metadata.bad_words, metadata.output_token_ids)
        if metadata.logitsprocs:
            logits = metadata.logitsprocs.apply(metadata.logitsprocs.non_argmax_invariant, logits)
        if metadata.penalties is not None:
            metadata.penalties.update(metadata.output_token_ids)
            apply_penalties(logits, metadata.penalties)
        if metadata.thinking_budget_state_holder is not None:
            metadata.thinking_budget_state_holder.apply_to_logits(logits, metadata.output_token_ids)
        return logits

    def compute_logprobs(self, logits: np.ndarray) -> np.ndarray:
        """What `logprobs` reports of these rows: the logits themselves in a mode that says so."""
        return logits if self.logprobs_mode.endswith("logits") else log_softmax(logits)

    def processed_logits(self, logits: np.ndarray, metadata: SamplingMetadata, rows: np.ndarray) -> np.ndarray:
        """The given rows of the batch as the choice sees them, a copy. logits: [R, V] after step 3.

        Upstream reports a greedy row after the custom processors if another row of its batch is drawn, and before them
        if none is; here always before, since they have no part in its choice.
        """
        found = logits[rows]
        at_random = metadata.temperature[rows] >= SAMPLING_EPS
        if at_random.any():
            found[at_random] = self._filtered(logits, rows[at_random], metadata)
        return found

    def sample_batch(self, logits: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """Steps 4 and 5 (upstream/vllm/v1/sample/sampler.py:238 — `Sampler.sample`). Returns int64[R].

        Upstream computes both choices for all rows of a mixed batch and picks with `torch.where`; here the random
        choice is computed for the random rows alone.
        """
        if metadata.all_greedy:
            return logits.argmax(axis=-1)
        random_rows = np.flatnonzero(metadata.temperature >= SAMPLING_EPS)
        if logits.shape[1] > LARGE_VOCABULARY and not metadata.has_custom_filters:
            settings = metadata.temperature, metadata.top_k, metadata.top_p, metadata.min_p
            chosen = sample_candidates(logits, random_rows, *settings, metadata.generators, self.use_fp64_gumbel)
        else:
            filtered = self._filtered(logits, random_rows, metadata)
            streams = [metadata.generators[row] for row in random_rows]
            chosen = random_sample(softmax(filtered), streams, self.use_fp64_gumbel)
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
            apply_min_p(logits, metadata.min_p[rows])
        _apply_top_k_top_p(logits, rows, metadata)
        return logits

    def _filtered(self, logits: np.ndarray, rows: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """The given rows after `apply_random_filters`. With custom processors the whole batch is filtered first, since
        they know a row by its place."""
        if not metadata.has_custom_filters:
            return self.apply_random_filters(logits[rows], rows, metadata)
        assert metadata.logitsprocs is not None
        temperature = np.where(metadata.temperature < SAMPLING_EPS, 1.0, metadata.temperature)
        logits = logits / temperature[:, None].astype(logits.dtype)
        logits = metadata.logitsprocs.apply(metadata.logitsprocs.argmax_invariant, logits)
        logits = logits[rows]
        _apply_top_k_top_p(logits, rows, metadata)
        return logits

    def _filtered_once(self, logits: np.ndarray, metadata: SamplingMetadata) -> tuple[np.ndarray, SamplingMetadata]:
        """The batch after its filters, and the settings that are left to apply: none.

        A custom processor may remember its calls, so that a step asks it once, for the report and for the draw
        (upstream/vllm/v1/sample/sampler.py:277 — "for processor in sampling_metadata.logitsprocs.argmax_invariant").
        """
        at_random = metadata.temperature >= SAMPLING_EPS
        if at_random.any():
            rows, logits = np.flatnonzero(at_random), logits.copy()
            logits[rows] = self._filtered(logits, rows, metadata)
        temperature = at_random.astype(metadata.temperature.dtype)
        return logits, replace(metadata, temperature=temperature, top_k=None, top_p=None, logitsprocs=None)

    @staticmethod
    def gather_logprobs(
        reported: np.ndarray, sampled: np.ndarray, metadata: SamplingMetadata
    ) -> list[dict[int, tuple[float, int]]]:
        """The chosen token and the likeliest ones of each row that asked, with ranks from 1.

        reported: [rows that asked, V]. Where a row asked for certain ids, their "ranks" are their places in its
        list, as upstream numbers them.
        """
        gathered: list[dict[int, tuple[float, int]]] = [{} for _ in sampled]
        for values, (row, count) in zip(reported, metadata.num_logprobs.items(), strict=True):
            asked = metadata.logprob_token_ids.get(row)
            gathered[row] = top_logprobs(values, int(sampled[row]), count if asked is None else 0)
            for rank, token in enumerate(asked or (), start=1):
                gathered[row][int(token)] = (float(values[token]), rank)
        return gathered

    def sample(self, logits: np.ndarray, params: SamplingParams, rng: np.random.Generator | None = None) -> int:
        """One token for one request: `logits[V]`. Without `rng`, a fresh stream from `params.seed`."""
        if np.ndim(logits) != 1:
            raise ValueError(f"logits must have shape [V], got {np.shape(logits)}.")
        row = SamplingRow(params, generator=rng if rng is not None else np.random.default_rng(params.seed))
        metadata = SamplingMetadata.from_rows([row], len(logits))
        return int(self.forward(np.asarray(logits)[None, :], metadata).sampled_token_ids[0])


def _apply_top_k_top_p(logits: np.ndarray, rows: np.ndarray, metadata: SamplingMetadata) -> None:
    top_k = None if metadata.top_k is None else metadata.top_k[rows]
    top_p = None if metadata.top_p is None else metadata.top_p[rows]
    apply_top_k_top_p(logits, top_k, top_p)
