"""Which drafts stay, and which token comes instead: the output has the law of the target, whoever made the drafts.

    accepted    a draft x is kept with probability min(1, p(x) / q(x))
    recovered   the first one that is not kept is replaced by a draw from max(p - q, 0), normalized; the rest is dropped
    bonus       where all are kept, the row after the last draft gives one token more, sampled as ever

p is the target's law after all sampling parameters, q the law that the draft was drawn from. Where nothing is known of
the drawing (ngram, greedy drafts) q is 1 at the draft: it is kept with probability p(x), and replaced by a draw from p
without x. Greedy requests keep a draft where it is the target's argmax. Leviathan, Kalman and Matias, "Fast Inference
from Transformers via Speculative Decoding", arXiv:2211.17192, theorem 3.

Upstream twin: `vllm/v1/sample/rejection_sampler.py`, whose kernels walk over the drafts of a request; here all drafts
of a batch are judged at once, and the first rejected one of each request is found afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mini_vllm.outputs import SamplerOutput
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.rejection_sample import PLACEHOLDER_TOKEN_ID, rejection_sample
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SAMPLING_EPS
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
from mini_vllm.spec_decode.utils import unconditional_to_conditional_rates
from mini_vllm.utils.arrays import Array

MAX_SPEC_LEN = 128

LogprobEntry = dict[int, tuple[float, int]]


@dataclass
class RejectionSamplerOutput:
    """sampled_token_ids [B, max_spec_len + 1]: tokens of each request, then -1. logprobs: for each request one dict for
    each token, as `SamplerOutput`; None where nobody asked. errors: requests with no token to choose from."""

    sampled_token_ids: Array
    logprobs: list[list[LogprobEntry]] | None
    errors: dict[int, str]


class RejectionSampler:
    """Args:
        sampler: samples the bonus tokens, and knows what parameters do to logits.
        spec_config: `rejection_sample_method` and its rates; None: the standard one.

    Upstream: upstream/vllm/v1/sample/rejection_sampler.py:37 — `RejectionSampler`.
    """

    def __init__(self, sampler: Sampler, spec_config: Any = None) -> None:
        if not hasattr(sampler, "apply_logits_processors"):
            raise ValueError(
                "a sampler of your own needs speculative_config=None: it gives one token of a row, and drafts are "
                f"judged by the probabilities behind it, got {type(sampler).__name__}"
            )
        self.sampler = sampler
        self.synthetic_conditional_rates: Array | None = None
        if spec_config is not None and spec_config.rejection_sample_method == "synthetic":
            rates = unconditional_to_conditional_rates(spec_config.synthetic_acceptance_rates)
            self.synthetic_conditional_rates = np.array(rates)
        self._stream = np.random.default_rng(0)
        """Of greedy requests, which have none of their own: synthetic acceptance draws for them too."""

    def forward(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: Array | None,
        logits: Array,
        sampling_metadata: SamplingMetadata,
        rows: Sequence[SamplingRow] = (),
    ) -> RejectionSamplerOutput:
        """Tokens for B requests with T drafts in all.

        Args:
            metadata: where the drafts are. draft_probs [T, V]: q; None: 1 at each draft.
            logits [T + B, V]: the target's, not changed.
            sampling_metadata: of the B requests. rows: the same requests, where some parameter of theirs changes logits
                (penalties, masks, bias): it is then applied at each draft, to the output with the drafts before it.

        Upstream: upstream/vllm/v1/sample/rejection_sampler.py:87 — `RejectionSampler.forward`.
        """
        assert metadata.max_spec_len <= MAX_SPEC_LEN
        if logits.dtype not in (np.float32, np.float64):
            logits = logits.astype(np.float32)
        bonus, bonus_logits = self._sample_bonus(metadata, logits, sampling_metadata, rows)
        target = logits[metadata.target_logits_indices]
        dead: Array = np.zeros(0, bool)
        if not sampling_metadata.leaves_logits_alone:
            expanded = expand_rows_to_drafts(rows, metadata, logits.shape[1])
            target = self.sampler.apply_logits_processors(target, expanded)
            dead = np.asarray(np.isneginf(target).all(axis=-1))
            target[dead] = 0.0
        target = self._apply_sampling_constraints(target, metadata, sampling_metadata)
        if self.synthetic_conditional_rates is not None:
            streams: list[Any] = [generator or self._stream for generator in sampling_metadata.generators]
            sampling_metadata = replace(sampling_metadata, generators=streams)
        output = rejection_sample(
            metadata, draft_probs, target, bonus.sampled_token_ids, sampling_metadata, self.synthetic_conditional_rates
        )
        errors = self._end_before_dead_rows(metadata, output, bonus.errors, dead)
        wanted = sampling_metadata.num_logprobs
        if wanted and bonus_logits is not None:
            logits = logits.copy()
            logits[metadata.target_logits_indices], logits[metadata.bonus_logits_indices] = target, bonus_logits
        logprobs = self._gather_logprobs(metadata, logits, output, sampling_metadata) if wanted else None
        return RejectionSamplerOutput(output, logprobs, errors)

    __call__ = forward

    def _sample_bonus(
        self, metadata: SpecDecodeMetadata, logits: Array, sampling: SamplingMetadata, rows: Sequence[SamplingRow]
    ) -> tuple[SamplerOutput, Array | None]:
        """The token after the last draft of each request, [B], as if all drafts were accepted; and the logits that it
        was drawn from, [B, V], where `logprobs_mode` reports those."""
        if not sampling.leaves_logits_alone and rows:
            ends, drafts = metadata.cu_num_draft_tokens.tolist(), metadata.draft_token_ids.tolist()
            longer = [
                replace(row, output_token_ids=[*row.output_token_ids, *drafts[end - count : end]])
                for row, end, count in zip(rows, ends, metadata.num_draft_tokens, strict=True)
            ]
            sampling = SamplingMetadata.from_rows(longer, logits.shape[1])
        raw, processed = logits[metadata.bonus_logits_indices], None
        if sampling.num_logprobs and self.sampler.logprobs_mode.startswith("processed"):
            processed = self.sampler.apply_logits_processors(raw.copy(), sampling)
            processed = self.sampler.processed_logits(processed, sampling, np.arange(len(raw)))
        return self.sampler.forward(raw, replace(sampling, num_logprobs={}, logprob_token_ids={})), processed

    @staticmethod
    def _end_before_dead_rows(
        metadata: SpecDecodeMetadata, output: Array, of_bonus: dict[int, str], dead: Array
    ) -> dict[int, str]:
        """Requests that came to a row in which every token is masked. dead: bool[T], or empty.

        Tokens before such a row came out without drafts too, and may have ended the request: they stay in `output`,
        what stands behind them is taken out, and the error comes with the next step, whose first row that is.
        """
        errors: dict[int, str] = {}
        num_accepted = (output != PLACEHOLDER_TOKEN_ID).sum(axis=1) - 1
        message = "every token is masked: allowed_token_ids, bad_words, min_tokens and a grammar leave none"
        found = [(at, metadata.num_draft_tokens[at], text) for at, text in of_bonus.items()]
        if dead.any():
            of, positions = metadata.request_of_draft[dead].tolist(), metadata.position_of_draft[dead].tolist()
            found += [(at, position, message) for at, position in zip(of, positions, strict=True)]
        for at, position, text in found:
            if position <= num_accepted[at]:
                output[at, position:] = PLACEHOLDER_TOKEN_ID
                if position == 0:
                    errors[at] = text
        return errors

    @staticmethod
    def _apply_sampling_constraints(target: Array, metadata: SpecDecodeMetadata, sampling: SamplingMetadata) -> Array:
        """Temperature, min-p, top-k, top-p on the rows of random requests; greedy ones stay as they are.

        Upstream: upstream/vllm/v1/sample/rejection_sampler.py:506 — `apply_sampling_constraints`.
        """
        if sampling.all_greedy or not len(target):
            return target
        of = metadata.request_of_draft
        at_random = np.flatnonzero(sampling.temperature[of] >= SAMPLING_EPS)
        if len(at_random):
            target[at_random] = Sampler.apply_random_filters(target[at_random], of[at_random], sampling)
        return target

    def _gather_logprobs(
        self, metadata: SpecDecodeMetadata, logits: Array, output: Array, sampling: SamplingMetadata
    ) -> list[list[LogprobEntry]]:
        """Of each token that came out, from the logits of its row: as the model gave them, or processed.

        Upstream: upstream/vllm/v1/sample/rejection_sampler.py:197 — `_get_logprobs_tensors`.
        """
        starts = metadata.cu_num_sampled_tokens - metadata.num_draft_tokens - 1
        request, position = (output != PLACEHOLDER_TOKEN_ID).nonzero()
        asked = np.isin(request, list(sampling.num_logprobs))
        request, position = request[asked], position[asked]
        owners = request.tolist()
        virtual = replace(
            sampling,
            num_logprobs={at: sampling.num_logprobs[owner] for at, owner in enumerate(owners)},
            logprob_token_ids={
                at: sampling.logprob_token_ids[owner]
                for at, owner in enumerate(owners)
                if owner in sampling.logprob_token_ids
            },
        )
        found: list[list[LogprobEntry]] = [[] for _ in metadata.num_draft_tokens]
        values = self.sampler.compute_logprobs(logits[starts[request] + position])
        for owner, entry in zip(
            owners, self.sampler.gather_logprobs(values, output[request, position], virtual), strict=True
        ):
            found[owner].append(entry)
        return found

    @staticmethod
    def parse_output(output_token_ids: Array, vocab_size: int) -> list[list[int]]:
        """Each request's tokens, without the padding.

        Upstream: upstream/vllm/v1/sample/rejection_sampler.py:247 — `RejectionSampler.parse_output`.
        """
        valid = (output_token_ids != PLACEHOLDER_TOKEN_ID) & (output_token_ids < vocab_size)
        return [row[keep].tolist() for row, keep in zip(output_token_ids, valid, strict=True)]


def expand_rows_to_drafts(
    rows: Sequence[SamplingRow], metadata: SpecDecodeMetadata, vocab_size: int
) -> SamplingMetadata:
    """For each draft a request whose output ends before that draft: what a step without drafts would have seen.

    Upstream: upstream/vllm/v1/sample/rejection_sampler.py:375 — `_combine_outputs_with_spec_tokens`.
    """
    drafts, expanded, start = metadata.draft_token_ids.tolist(), [], 0
    for row, count in zip(rows, metadata.num_draft_tokens, strict=True):
        output = list(row.output_token_ids)
        for draft in drafts[start : start + count]:
            expanded.append(replace(row, output_token_ids=output))
            output = [*output, draft]
        start += count
    return SamplingMetadata.from_rows(expanded, vocab_size)
