"""An `add_deltas` of the learner's in the engine: given material, nothing to edit here.

`with serving(llm, add_deltas):` gives it the work of the engine's own product with the slots, for all projections of
all layers. q, k and v are one projection of three slices there; each slice is a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mini_vllm import LLM


@contextmanager
def serving(llm: LLM, add_deltas: Callable[..., None]) -> Iterator[None]:
    """See the head of this file."""
    runner: Any = llm.llm_engine.engine_core.model_runner
    wrapper = runner.lora_manager.adapter_manager.punica_wrapper

    def add_lora_linear(
        y: np.ndarray, x: np.ndarray, a_stacked: np.ndarray, b_stacked: Sequence[np.ndarray], first: int = 0
    ) -> None:
        """y [T, out], x [T, in], a_stacked [slots, slices, R, in], b_stacked: a slice's is [slots, R, outputs]."""
        slots = wrapper.token_lora_indices[first : first + len(x)]
        rows, column = len(slots), 0  # behind them is padding
        for a, b in zip(a_stacked.swapaxes(0, 1), b_stacked, strict=True):
            part = y[:rows, column : column + b.shape[2]]
            add_deltas(part, x[:rows], a, b.transpose(0, 2, 1), slots)
            column += b.shape[2]

    wrapper.add_lora_linear = add_lora_linear
    try:
        yield
    finally:
        del wrapper.add_lora_linear
