"""Counts of several replicas, apart and as one. vLLM keeps them apart to the end: `vllm/v1/metrics/loggers.py`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from mini_vllm.metrics.loggers import StatLogger
from mini_vllm.metrics.stats import EngineStats, SchedulerStats
from mini_vllm.spec_decode.metrics import SpecDecodingStats

if TYPE_CHECKING:
    from mini_vllm.engine import EngineCoreOutput
    from mini_vllm.engine.output_processor import OutputProcessor
    from mini_vllm.outputs import RequestOutput

_COUNTED = ("num_prompt_tokens", "num_cached_tokens", "num_generation_tokens", "num_preemptions")


def sum_of(stats: Sequence[SchedulerStats]) -> SchedulerStats:
    """Everything added up; of `kv_cache_usage` the mean."""
    total = stats[0]
    for each in stats[1:]:
        total = _added(total, each)
    return replace(total, kv_cache_usage=total.kv_cache_usage / len(stats))


def _added(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if is_dataclass(one) and not isinstance(one, type):
        pairs = {f.name: _added(getattr(one, f.name), getattr(other, f.name)) for f in fields(one) if f.init}
        if isinstance(one, SpecDecodingStats):
            pairs["num_spec_tokens"] = one.num_spec_tokens  # a setting
        return replace(one, **pairs)
    if isinstance(one, dict):
        return {key: _added(one.get(key), other.get(key)) for key in [*one, *(k for k in other if k not in one)]}
    if isinstance(one, list):
        return [_added(*pair) for pair in zip(one, other, strict=True)] if len(one) == len(other) else one + other
    if hasattr(one, "counts"):  # an `ExpertLoad`
        (total := copy.deepcopy(one)).counts += other.counts
        return total
    return one if isinstance(one, str | bool) else one + other


class ReplicaMetrics:
    """What a front end counts of each replica. The times of a request that its user ended go to the one heard last.

    Args:
        max_model_len: None: nothing is logged.

    Attributes:
        stats, loggers: by rank; a logger is None where nothing is logged.

    Upstream: upstream/vllm/v1/metrics/loggers.py:1268 — `StatLoggerManager`.
    """

    def __init__(self, size: int, max_model_len: int | None) -> None:
        self.stats: list[EngineStats] = []
        self.loggers: list[StatLogger | None] = []
        self._max_model_len = max_model_len
        self._stopped: set[str] = set()
        self.extend(size)

    def extend(self, size: int) -> None:
        """There are so many replicas. Of one that has left the counts stay, and go on where it comes again."""
        for _ in range(size - len(self.stats)):
            self.stats.append(EngineStats())
            self.loggers.append(None if self._max_model_len is None else StatLogger(self._max_model_len))

    def process_outputs(
        self, processor: OutputProcessor, rank: int, outputs: list[EngineCoreOutput], now: float
    ) -> tuple[list[RequestOutput], list[str]]:
        """As the processor's own, of outputs of one replica, for which they count."""
        total, mine = processor.stats, self.stats[rank]
        before = {name: getattr(total, name) for name in _COUNTED}
        finished = dict(total.finished)
        processor.stat_logger = self.loggers[rank]
        found, reqs_to_abort = processor.process_outputs(outputs, now)
        for name, value in before.items():
            setattr(mine, name, getattr(mine, name) + getattr(total, name) - value)
        for reason, count in total.finished.items():
            if count != finished.get(reason, 0):
                mine.finished[reason] = mine.finished.get(reason, 0) + count - finished.get(reason, 0)
        self._stopped.update(reqs_to_abort)
        return found, reqs_to_abort

    def note_aborts(self, rank: int, request_ids: list[str]) -> None:
        """These are aborted; those that a stop string has ended have been counted."""
        aborted = [each for each in request_ids if each not in self._stopped]
        self._stopped.difference_update(request_ids)
        if aborted:
            finished = self.stats[rank].finished
            finished["abort"] = finished.get("abort", 0) + len(aborted)
