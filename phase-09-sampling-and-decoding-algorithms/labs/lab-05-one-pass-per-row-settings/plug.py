"""Lab 09-05 in the engine: its sampler, with the choice of all rows of a step made by the learner's `sample_batch`.

Masks, bias and penalties come before, as ever. Vocabularies of more than 32,768 tokens are drawn by ours, whose streams
move by one number a draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm import Sampler, SamplerOutput, SamplingMetadata

LARGE_VOCABULARY = 1 << 15


class BatchSampler(Sampler):
    """`fit` makes the subclass that has the learner's function."""

    choose: Callable[..., Any]
    watch: Any

    def forward(self, logits: np.ndarray, metadata: SamplingMetadata) -> SamplerOutput:
        """As `Sampler.forward`, without its short cut past `sample_batch`."""
        if metadata.all_greedy and metadata.leaves_logits_alone and not metadata.num_logprobs:
            return SamplerOutput(self.sample_batch(logits, metadata))
        return super().forward(logits, metadata)

    def sample_batch(self, logits: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """See `Sampler.sample_batch`."""
        num_rows, vocab_size = logits.shape
        if vocab_size > LARGE_VOCABULARY or metadata.has_custom_filters:
            return super().sample_batch(logits, metadata)
        given = [
            default if values is None else np.asarray(values, default.dtype)
            for values, default in (
                (metadata.temperature, np.zeros(num_rows)),
                (metadata.top_k, np.zeros(num_rows, np.int64)),
                (metadata.top_p, np.ones(num_rows)),
                (metadata.min_p, np.zeros(num_rows)),
            )
        ]
        chosen = self.watch.call(type(self).choose, logits, *given, list(metadata.generators))
        self._check(chosen, logits, metadata.temperature)
        return np.asarray(chosen)

    def _check(self, chosen: Any, logits: np.ndarray, temperature: np.ndarray) -> None:
        num_rows, vocab_size = logits.shape
        kind = f"{getattr(chosen, 'dtype', type(chosen).__name__)} of shape {np.shape(chosen)}"
        right = isinstance(chosen, np.ndarray) and chosen.shape == (num_rows,) and chosen.dtype == np.int64
        self.watch.require(right, f"sample_batch must return int64[{num_rows}], got {kind}")
        inside = (chosen >= 0) & (chosen < vocab_size)
        outside = f"sample_batch returned an id outside the vocabulary of {vocab_size}: {chosen}"
        self.watch.require(inside.all(), outside)
        scores = logits[np.arange(num_rows), chosen]
        masked = np.isneginf(scores)
        self.watch.require(not masked.any(), f"sample_batch chose a masked token in row {masked.argmax()}")
        wrong = (temperature == 0) & (chosen != logits.argmax(axis=1))
        row = wrong.argmax()
        greedy = f"sample_batch chose {chosen[row]} in row {row} at temperature 0, which is not the largest"
        self.watch.require(not wrong.any(), greedy)


def fit(module: Any, watch: Any) -> type[BatchSampler]:
    """The engine's sampler with this lab's function in it."""
    return type("LabBatchSampler", (BatchSampler,), {"choose": staticmethod(module.sample_batch), "watch": watch})
