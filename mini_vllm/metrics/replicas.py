"""Counts of several replicas as one. vLLM keeps them apart to the end: `vllm/v1/metrics/loggers.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mini_vllm.metrics.stats import SchedulerStats


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
        return replace(one, **pairs)
    if isinstance(one, dict):
        return {key: _added(one.get(key), other.get(key)) for key in [*one, *(k for k in other if k not in one)]}
    if isinstance(one, list):
        return [_added(*pair) for pair in zip(one, other, strict=True)] if len(one) == len(other) else one + other
    return one if isinstance(one, str | bool) else one + other
