"""A `sample` of the learner's in the engine: given material, nothing to edit here.

`with serving(llm, sample):` makes it the sampler of every request, one row at a time. The row's request is known to the
runner: its parameters, its prompt, its output so far, its own stream of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mini_vllm import LLM
from mini_vllm.outputs import SamplerOutput


class LabSampler:
    """Stands where the engine's `Sampler` stands; gets the states of the rows in place of the batch's arrays."""

    def __init__(self, sample: Callable[..., int]) -> None:
        self.sample = sample

    def forward(self, logits: np.ndarray, states: list[Any]) -> SamplerOutput:
        """One call a row. logits: [R, V]."""
        chosen = [
            self.sample(row, state.sampling_params, state.output_token_ids, (), state.generator, state.prompt_token_ids)
            for row, state in zip(logits, states, strict=True)
        ]
        return SamplerOutput(np.array(chosen, dtype=np.int64))


@contextmanager
def serving(llm: LLM, sample: Callable[..., int]) -> Iterator[None]:
    """See the head of this file."""
    runner: Any = llm.llm_engine.engine_core.model_runner
    before = runner.sampler
    runner.sampler = LabSampler(sample)
    runner.sampling_metadata = lambda rows: [runner.input_batch.states[row] for row in rows]
    try:
        yield
    finally:
        runner.sampler = before
        del runner.sampling_metadata
