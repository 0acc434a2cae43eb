"""Prompts of random tokens, alone or behind prefixes that several of them share.

Upstream twin: `vllm/benchmarks/datasets/datasets.py`. The draws are upstream's, so that one seed gives one set of
prompts, whoever asks for it.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from mini_vllm.benchmarks.datasets.datasets import BenchmarkDataset, SampleRequest, logger
from mini_vllm.benchmarks.datasets.utils import (
    RangeRatio,
    gen_prompt_decode_to_target_len,
    get_sampling_params,
    num_special_tokens,
    parse_range_ratio,
    resolve_range_ratios,
)


class RandomDataset(BenchmarkDataset):
    """Prompt i: a shared prefix, then ids counted up from a random place in the vocabulary.

    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:532 — `RandomDataset`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rng = np.random.default_rng(self.random_seed)

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        no_oversample: bool = False,
        prefix_len: int = 0,
        range_ratio: RangeRatio | str = 0.0,
        input_len: int = 64,
        output_len: int = 64,
        batchsize: int = 1,
        as_token_ids: bool = False,
        **kwargs: Any,
    ) -> list[SampleRequest]:
        """`input_len` counts special tokens, not the prefix. batchsize: texts in one request, for embeddings.
        as_token_ids: prompts are ids, `input_len` of them exactly; as texts, some encode to a few more or fewer.

        Raises ValueError where a prompt could come out empty.
        """
        range_ratio = parse_range_ratio(range_ratio)
        self._check(tokenizer, prefix_len, input_len, resolve_range_ratios(range_ratio)[0])
        lens = get_sampling_params(self._rng, num_requests, range_ratio, input_len, output_len, tokenizer)
        special = set(tokenizer.all_special_ids)
        allowed = np.array([i for i in range(tokenizer.vocab_size) if i not in special])
        prefix = self._prefix(tokenizer, allowed, prefix_len, as_token_ids)
        requests, mismatch, more_ids = [], 0, num_special_tokens(tokenizer) if as_token_ids else 0
        for i, (in_len, out_len, offset) in enumerate(zip(*(column.tolist() for column in lens), strict=True)):
            inner = allowed[(offset + i + np.arange(in_len + more_ids)) % len(allowed)].tolist()
            if as_token_ids:
                ids = prefix + inner
                requests.append(SampleRequest(ids, len(ids), out_len, request_id_prefix + str(i)))
                continue
            prompt, tokens, more = gen_prompt_decode_to_target_len(
                tokenizer, prefix + inner, prefix_len + in_len, self._draw
            )
            mismatch += more
            requests.append(SampleRequest(prompt, len(tokens), out_len, request_id_prefix + str(i)))
        _warn(mismatch)
        return requests if batchsize == 1 else _batches(requests, batchsize, request_id_prefix)

    def _check(self, tokenizer: Any, prefix_len: int, input_len: int, ratio: float) -> None:
        shortest = prefix_len + math.floor(max(0, input_len - num_special_tokens(tokenizer)) * (1.0 - ratio))
        if shortest < 1:
            raise ValueError(
                f"random_input_len is too small: prompts of {shortest} tokens could come of input_len={input_len}, "
                f"prefix_len={prefix_len} and range_ratio={ratio}"
            )

    def _draw(self, low: int, high: int, size: int) -> list[int]:
        return self._rng.integers(low, high, size=size).tolist()

    def _prefix(self, tokenizer: Any, allowed: np.ndarray, prefix_len: int, as_token_ids: bool) -> list[int]:
        if prefix_len <= 0:
            return []
        ids: list[int] = allowed[self._rng.integers(0, len(allowed), size=prefix_len)].tolist()
        if as_token_ids:
            return ids
        return gen_prompt_decode_to_target_len(tokenizer, ids, prefix_len, self._draw)[1]


class PrefixRepetitionRandomDataset(BenchmarkDataset):
    """`num_prefixes` prefixes, each before equally many suffixes, in random order.

    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:3702 — `PrefixRepetitionRandomDataset`, which draws from the
    process-wide sources of chance; these are of the same seed, but our own. Its requests have no ids.
    """

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        no_oversample: bool = False,
        prefix_len: int = 256,
        suffix_len: int = 256,
        num_prefixes: int = 10,
        output_len: int = 128,
        **kwargs: Any,
    ) -> list[SampleRequest]:
        """Raises ValueError where there are fewer requests than prefixes."""
        per_prefix = num_requests // num_prefixes
        if per_prefix == 0:
            raise ValueError(
                f"num_requests ({num_requests}) must be greater than or equal to num_prefixes ({num_prefixes})"
            )
        chance = np.random.RandomState(self.random_seed)
        mismatch = 0

        def draw(low: int, high: int, size: int) -> list[int]:
            return chance.randint(low, high, size=size).tolist()

        def exactly(length: int) -> list[int]:
            nonlocal mismatch
            ids = draw(0, tokenizer.vocab_size, length)
            _, tokens, more = gen_prompt_decode_to_target_len(tokenizer, ids, length, draw)
            mismatch += more
            return tokens

        requests = []
        for _ in range(num_prefixes):
            prefix = exactly(prefix_len)
            for _ in range(per_prefix):
                tokens = prefix + exactly(suffix_len)
                text = tokenizer.decode(tokens, skip_special_tokens=False)
                requests.append(SampleRequest(text, len(tokens), output_len))
        _warn(mismatch)
        if not self.disable_shuffle:
            random.Random(self.random_seed).shuffle(requests)
        for i, request in enumerate(requests):
            request.request_id = request_id_prefix + str(i)
        return requests


def _batches(requests: list[SampleRequest], size: int, prefix: str) -> list[SampleRequest]:
    groups = [requests[i : i + size] for i in range(0, len(requests), size)]
    return [
        SampleRequest([r.prompt for r in group], sum(r.prompt_len for r in group), 0, prefix + str(i))
        for i, group in enumerate(groups)
    ]


def _warn(mismatch: int) -> None:
    if mismatch:
        logger.warning(
            "The prompts have %d %s tokens than asked for: some texts do not encode to the ids that they came from.",
            abs(mismatch),
            "more" if mismatch > 0 else "fewer",
        )
