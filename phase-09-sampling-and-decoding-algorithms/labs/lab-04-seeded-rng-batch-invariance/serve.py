"""A learner's streams in the engine: given material, nothing to edit here.

`served(lab, ...)` is an engine on pocket whose random rows are drawn by one `PerRequestSampler`. Temperature, top-k and
the rest are applied before; what is left comes in as logits at temperature 1. Every request needs a seed.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mini_vllm import LLM, EngineParts, Sampler, SamplingMetadata

POCKET = Path(__file__).resolve().parents[3] / "models" / "pocket"


def seed_of(generator: np.random.Generator) -> int:
    """What a request's stream was started from."""
    return int(generator.bit_generator.seed_seq.entropy)  # type: ignore[attr-defined]


class ServedSampler(Sampler):
    """The engine's sampler with the choice of random rows taken from the lab."""

    lab: ModuleType

    def __init__(self) -> None:
        self.streams = self.lab.PerRequestSampler()

    def sample_batch(self, logits: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """See `Sampler.sample_batch`. The seed stands in the stream that the engine has made for the request."""
        chosen = logits.argmax(axis=-1)
        at_random = np.flatnonzero(metadata.temperature > 0)
        scores = self.apply_random_filters(logits[at_random], at_random, metadata)
        rows = []
        for row in at_random.tolist():
            output, generator = metadata.output_token_ids[row], metadata.generators[row]
            assert generator is not None
            rows.append(self.lab.Row(str(id(output)), seed_of(generator), 1.0, len(output)))
        if rows:
            chosen[at_random] = self.streams.sample(rows, scores)
        return chosen


def served(lab: ModuleType, **settings: Any) -> LLM:
    """An engine on pocket that draws with the lab's code, in float64 unless the settings say otherwise."""
    sampler = type("LabStreams", (ServedSampler,), {"lab": lab})
    return LLM(str(POCKET), with_labs=EngineParts(sampler=sampler), **{"dtype": "float64", **settings})
