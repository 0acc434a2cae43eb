"""Where in a step's logits the drafts of each request stand. Upstream twin: `vllm/v1/spec_decode/metadata.py`.

Two requests, the first with drafts d1 and d2, the second without:

    tokens of the step     ... t  d1  d2 | ... u
    rows of the logits         0   1   2       3     row 0 judges d1, row 1 judges d2
    target_logits_indices      0   1                 rows that judge a draft
    bonus_logits_indices               2       3     the row after the last draft: one token more, if all are accepted
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mini_vllm.utils.arrays import Array


@dataclass
class SpecDecodeMetadata:
    """Of B requests that sample, T drafts in all. Counts are cumulated up to and with each request.

    draft_token_ids [T], num_draft_tokens (B numbers), cu_num_draft_tokens [B], cu_num_sampled_tokens [B] (drafts + 1),
    target_logits_indices [T] and bonus_logits_indices [B] into the T + B rows of the logits, logits_indices [T + B]
    into the tokens of the step.

    Upstream: upstream/vllm/v1/spec_decode/metadata.py:10 — `SpecDecodeMetadata`.
    """

    draft_token_ids: Array
    num_draft_tokens: list[int]
    cu_num_draft_tokens: Array
    cu_num_sampled_tokens: Array
    target_logits_indices: Array
    bonus_logits_indices: Array
    logits_indices: Array

    def __post_init__(self) -> None:
        self.max_spec_len = max(self.num_draft_tokens)

    @property
    def request_of_draft(self) -> Array:
        """[T]: which request each draft belongs to."""
        return np.repeat(np.arange(len(self.num_draft_tokens)), self.num_draft_tokens)

    @property
    def position_of_draft(self) -> Array:
        """[T]: the how-manieth draft of its request it is, from 0."""
        starts = self.cu_num_draft_tokens - self.num_draft_tokens
        return np.arange(len(self.draft_token_ids)) - np.repeat(starts, self.num_draft_tokens)

    @classmethod
    def make(cls, num_draft_tokens: Array, last_token: Array, input_ids: Array) -> SpecDecodeMetadata:
        """From the step's arrays.

        Args:
            num_draft_tokens [B]: of each request that samples. last_token [B]: index of its last token in the step,
                its last draft if it has any. input_ids: all tokens of the step.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:2713 — `GPUModelRunner._calc_spec_decode_metadata`.
        """
        num_sampled = num_draft_tokens + 1
        cu_sampled, cu_drafts = np.cumsum(num_sampled), np.cumsum(num_draft_tokens)
        within_sampled = np.arange(cu_sampled[-1]) - np.repeat(cu_sampled - num_sampled, num_sampled)
        logits_indices = np.repeat(last_token - num_draft_tokens, num_sampled) + within_sampled
        within_drafts = np.arange(cu_drafts[-1]) - np.repeat(cu_drafts - num_draft_tokens, num_draft_tokens)
        target = np.repeat(cu_sampled - num_sampled, num_draft_tokens) + within_drafts
        return cls(
            draft_token_ids=input_ids[logits_indices[target] + 1],
            num_draft_tokens=num_draft_tokens.tolist(),
            cu_num_draft_tokens=cu_drafts,
            cu_num_sampled_tokens=cu_sampled,
            target_logits_indices=target,
            bonus_logits_indices=cu_sampled - 1,
            logits_indices=logits_indices,
        )

    @classmethod
    def make_dummy(cls, draft_token_ids: list[list[int]]) -> SpecDecodeMetadata:
        """For requests whose tokens stand one after the other, each with one known token before its drafts."""
        counts = np.array([len(ids) for ids in draft_token_ids], np.int64)
        input_ids = np.array([token for ids in draft_token_ids for token in (-1, *ids)], np.int64)
        return cls.make(counts, np.cumsum(counts + 1) - 1, input_ids)
