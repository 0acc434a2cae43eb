"""Bad words: token sequences that must not appear. Upstream twin: `vllm/v1/sample/ops/bad_words.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mini_vllm.sample.ops.logprobs import NEG_INF


def apply_bad_words(
    logits: np.ndarray, bad_words: Mapping[int, list[list[int]]], output_token_ids: Sequence[list[int]]
) -> None:
    """Mask the last id of each bad word where the output so far ends with the ids before it.

    Twin: upstream/vllm/v1/sample/ops/bad_words.py:30 — `apply_bad_words`.
    """
    for row, words in bad_words.items():
        past = output_token_ids[row]
        for *prefix, last in words:
            if not prefix or past[-len(prefix) :] == prefix:
                logits[row, last] = NEG_INF
