"""The processors of an engine, and what they are told of the batch.

Upstream twin: `vllm/v1/sample/logits_processor/state.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from mini_vllm.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from mini_vllm.sample.logits_processor.interface import (
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
)

_BUILT_IN = MinPLogitsProcessor, MinTokensLogitsProcessor, LogitBiasLogitsProcessor


class LogitsProcessors:
    """Processors by when they run, and the rows that they have been told of.

    Attributes:
        argmax_invariant: after temperature, for rows that draw. non_argmax_invariant: before the greedy choice.

    Upstream: upstream/vllm/v1/sample/logits_processor/state.py:148 — `LogitsProcessors`.
    """

    def __init__(self, logitsprocs: Iterable[LogitsProcessor] = ()) -> None:
        self.argmax_invariant: list[LogitsProcessor] = []
        self.non_argmax_invariant: list[LogitsProcessor] = []
        for each in logitsprocs:
            (self.argmax_invariant if each.is_argmax_invariant() else self.non_argmax_invariant).append(each)
        self.custom_argmax_invariant = [p for p in self.argmax_invariant if not isinstance(p, MinPLogitsProcessor)]
        self._min_p = next((p for p in self.argmax_invariant if isinstance(p, MinPLogitsProcessor)), None)
        self._tracker = BatchTracker()

    @property
    def all(self) -> Iterator[LogitsProcessor]:
        """Every processor."""
        return chain(self.argmax_invariant, self.non_argmax_invariant)

    @property
    def min_p(self) -> Any:
        """What `MinPLogitsProcessor` holds: float32[R], or None."""
        return None if self._min_p is None else self._min_p.min_p

    @property
    def changes_argmax(self) -> bool:
        """True where one of them may change what a greedy row takes."""
        return any(each.has_work() for each in self.non_argmax_invariant)

    def apply(self, processors: Iterable[LogitsProcessor], logits: np.ndarray) -> np.ndarray:
        """What they make of logits [R, V], one after the other.

        Raises:
            ValueError: a custom one gives back something else than floats of that shape, or a NaN; names it.
        """
        for each in processors:
            shape, logits = logits.shape, each.apply(logits)
            if not isinstance(each, _BUILT_IN):
                _check(each, logits, shape)
        return logits

    def follow(self, rows: Sequence[Any] | None) -> LogitsProcessors:
        """Tell every processor of the rows that are sampled now (`SamplingRow`); None: the same as the last time."""
        batch_update = None if rows is None else self._tracker.update(rows)
        for each in self.all:
            each.update_state(batch_update)
        return self


def _check(processor: LogitsProcessor, logits: Any, shape: tuple[int, ...]) -> None:
    is_array = isinstance(logits, np.ndarray) and logits.dtype.kind == "f"
    if not is_array or logits.shape != shape:
        got = f"{logits.dtype} of shape {logits.shape}" if isinstance(logits, np.ndarray) else f"{logits!r:.60}"
        raise ValueError(f"{type(processor).__name__}.apply must give back floats of shape {shape}, got {got}")
    if np.isnan(logits.max(axis=-1)).any():
        raise ValueError(f"{type(processor).__name__}.apply gave back NaN, which no token can be chosen by")


class BatchTracker:
    """From two lists of rows to a `BatchUpdate`. A request is known by its list of output tokens, which it keeps.

    Upstream has no such thing: its runner samples every row of the persistent batch, also chunks of prompts, and throws
    those tokens away, so that the batch's own bookkeeping is the update
    (upstream/vllm/v1/sample/logits_processor/state.py:18 — `BatchUpdateBuilder`). Here only rows that are due are
    sampled, and others come and go between two steps.
    """

    def __init__(self) -> None:
        self._outputs: list[list[int]] = []

    def update(self, rows: Sequence[Any]) -> BatchUpdate | None:
        """What changed since the last call, None where nothing did.

        New rows fill the places of removed ones, lowest first, or are added at the end; then rows move, into holes or
        by changing places, until they stand in the order of `rows`.
        """
        before, outputs = self._outputs, [row.output_token_ids for row in rows]
        if len(before) == len(outputs) and all(a is b for a, b in zip(before, outputs, strict=True)):
            return None
        staying, known = set(map(id, outputs)), set(map(id, before))
        slots: list[int | None] = [id(output) if id(output) in staying else None for output in before]
        holes = [index for index, slot in enumerate(slots) if slot is None]
        added: list[AddedRequest] = []
        for row in (row for row in rows if id(row.output_token_ids) not in known):
            index = holes.pop(0) if holes else len(slots)
            slots[index : index + 1] = [id(row.output_token_ids)]
            added.append((index, row.params, list(row.prompt_token_ids), row.output_token_ids))
        self._outputs = outputs
        return BatchUpdate(len(rows), holes, added, _moves(slots, list(map(id, outputs))))


def _moves(slots: list[int | None], wanted: list[int]) -> list[MovedRequest]:
    """Moves that bring `slots`, None where a hole is, into the order that is wanted; `slots` is used up."""
    at = {slot: index for index, slot in enumerate(slots)}
    moved: list[MovedRequest] = []
    for target, request in enumerate(wanted):
        source, displaced = at[request], slots[target]
        if source == target:
            continue
        slots[target], slots[source] = request, displaced
        one_way = displaced is None
        moved.append((source, target, MoveDirectionality.UNIDIRECTIONAL if one_way else MoveDirectionality.SWAP))
        if displaced is not None:
            at[displaced] = source
    return moved
