"""What a logits processor is: state for a batch, kept in step by differences, and one change to the whole matrix.

    update_state(batch_update)   once a step, before `apply`: which rows came, went and moved; None: the same as before
    apply(logits)                [R, V] in, [R, V] out, in place where possible
    is_argmax_invariant()        True: greedy rows do not need it, and a batch of greedy rows skips it

A processor sees the rows that are sampled in this step, in the order of the logits; a request whose prompt is not
finished is not among them yet, and one that was preempted comes back as a new one, with its output so far.
Upstream twin: `vllm/v1/sample/logits_processor/interface.py`, where tensors stand for the arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np

from mini_vllm.sampling_params import SamplingParams


class MoveDirectionality(Enum):
    """Whether a row moves into a hole, or two rows change places.

    Upstream: upstream/vllm/v1/sample/logits_processor/interface.py:17 — `MoveDirectionality`.
    """

    UNIDIRECTIONAL = auto()
    SWAP = auto()


RemovedRequest = int
"""The row that a request had."""
AddedRequest = tuple[int, SamplingParams, "list[int] | None", "list[int]"]
"""Row, parameters, prompt, and the request's own list of output tokens, which grows with each step."""
MovedRequest = tuple[int, int, MoveDirectionality]
"""From row, to row, and whether what stood there comes back."""


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch differs from the one before. To be read in this order: removed, added, moved.

    A row that is added or moved may take the place of one that was removed; `removed` names only rows that stay empty.
    Upstream: upstream/vllm/v1/sample/logits_processor/interface.py:37 — `BatchUpdate`.
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """The base of all of them, built-in or custom; the package says how to have one loaded.

    Upstream: upstream/vllm/v1/sample/logits_processor/interface.py:60 — `LogitsProcessor`.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Look at a request's parameters at the door. Raises ValueError for those that cannot be used."""
        return None

    @abstractmethod
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        """vllm_config: the `EngineConfig`. device: "cpu" here; is_pin_memory: False here."""

    @abstractmethod
    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Change logits [R, V], in place or not, and return them."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """True where the largest logit of a row stays the largest."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before each `apply`; None where the batch has the same rows as before."""

    def has_work(self) -> bool:
        """False where `apply` would change nothing now. Not in upstream: a step without work copies no logits here."""
        return True
