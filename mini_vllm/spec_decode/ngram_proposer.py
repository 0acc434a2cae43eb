"""Drafts that cost nothing: what followed the same tokens the last time. Upstream twin:
`vllm/v1/spec_decode/ngram_proposer.py`.

    ... the KV cache holds keys | and values ... the KV cache holds          n = 5 tokens are the same
                                  ^^^^^^^^^^ the draft
"""

from __future__ import annotations

from typing import Any

from mini_vllm.utils.arrays import Array


class NgramProposer:
    """Looks for the end of each request in the request itself: prompt lookup.

    Args:
        vllm_config: the engine's settings; `speculative_config` says how many tokens must be the same.
        max_model_len: no draft goes beyond it.

    Upstream: upstream/vllm/v1/spec_decode/ngram_proposer.py:12 — `NgramProposer`.
    """

    def __init__(self, vllm_config: Any, max_model_len: int) -> None:
        config = vllm_config.speculative_config
        self.min_n, self.max_n = config.prompt_lookup_min, config.prompt_lookup_max
        self.k = config.num_speculative_tokens
        self.max_model_len = max_model_len

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Array,
        token_ids_cpu: Array,
        slot_mappings: None = None,
    ) -> list[list[int]]:
        """Drafts for each row of the batch, none where nothing recurs or nothing was sampled (a chunk of a prompt).

        Args:
            sampled_token_ids: tokens that each row got in this step. num_tokens_no_spec [R]: tokens of each row, those
                included. token_ids_cpu [R, max_model_len]: the tokens. slot_mappings: of other proposers.

        Upstream: upstream/vllm/v1/spec_decode/ngram_proposer.py:131 — `NgramProposer.propose`.
        """
        lengths = num_tokens_no_spec[: len(sampled_token_ids)].tolist()
        return [
            find_longest_matched_ngram_and_propose_tokens(
                token_ids_cpu[row, :length], self.min_n, self.max_n, self.max_model_len, self.k
            )
            if sampled and length < self.max_model_len
            else []
            for row, (sampled, length) in enumerate(zip(sampled_token_ids, lengths, strict=True))
        ]


def find_longest_matched_ngram_and_propose_tokens(
    origin_tokens: Array, min_ngram: int, max_ngram: int, max_model_len: int, k: int
) -> list[int]:
    """The tokens after the longest earlier occurrence of the last `min_ngram` to `max_ngram` tokens.

    Of occurrences of one length the earliest counts: more may follow it. An occurrence may overlap with the end itself.

    Args:
        origin_tokens: all tokens of a request, [L].

    Returns:
        At most `k` tokens, and none beyond `max_model_len`.

    Upstream: upstream/vllm/v1/spec_decode/ngram_proposer.py:199 — `_find_longest_matched_ngram_and_propose_tokens`,
    one pass of Knuth, Morris and Pratt over the tokens from behind, compiled by numba. Here the places that agree in
    one token are found in one comparison, and thinned out token by token.
    """
    total, k = len(origin_tokens), min(k, max_model_len - len(origin_tokens))
    if total < min_ngram or k <= 0:
        return []
    ends = (origin_tokens[:-1] == origin_tokens[-1]).nonzero()[0] + 1  # where an occurrence ends, exclusive
    if not len(ends):
        return []
    longest = 1
    while longest < min(max_ngram, total - 1):
        ends_far_enough = ends[ends > longest]
        earlier = origin_tokens[ends_far_enough - longest - 1]
        longer = ends_far_enough[earlier == origin_tokens[total - longest - 1]]
        if not len(longer):
            break
        ends, longest = longer, longest + 1
    if longest < min_ngram:
        return []
    start = int(ends[0])
    return origin_tokens[start : start + k].tolist()
