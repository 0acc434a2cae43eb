"""Whether and where KV cache events are published. Upstream twin: `vllm/config/kv_events.py`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mini_vllm.config.utils import whole_number
from mini_vllm.utils.checks import shown

PUBLISHERS = ("null", "zmq")


@dataclass
class KVEventsConfig:
    """`LLM(kv_events_config={"enable_kv_cache_events": True, …})`.

    publisher: "zmq" or "null"; by default zmq where events are enabled. endpoint: where batches are published; an
    address with `*` or `::` is bound, another connected to. replay_endpoint: where missed batches can be asked for.
    buffer_steps: batches kept for that. hwm: batches that zmq holds for a slow subscriber before it drops some.
    max_queue_size: batches that wait to be sent. topic: what subscribers filter by.

    Upstream: upstream/vllm/config/kv_events.py:11 — `KVEventsConfig`.
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.enable_kv_cache_events, bool):
            raise ValueError(f"enable_kv_cache_events must be True or False, got {shown(self.enable_kv_cache_events)}")
        if self.publisher is None:
            self.publisher = "zmq" if self.enable_kv_cache_events else "null"
        if self.publisher not in PUBLISHERS:
            raise ValueError(f"publisher must be one of {PUBLISHERS}, got {shown(self.publisher)}")
        for name in ("endpoint", "replay_endpoint", "topic"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "replay_endpoint" and value is None):
                raise ValueError(f"{name} must be text, got {shown(value)}")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            whole_number(name, getattr(self, name), 1)

    @classmethod
    def of(cls, value: KVEventsConfig | dict[str, Any] | None) -> KVEventsConfig:
        """From an engine argument: such an object, a dict of its fields, or None for no events."""
        if isinstance(value, cls):
            return value
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"kv_events_config must be a dict or a KVEventsConfig, got {shown(value)}")
        known = [f.name for f in fields(cls)]
        unknown = next((name for name in value or {} if name not in known), None)
        if unknown is not None:
            raise ValueError(f"kv_events_config: unknown key {unknown!r}; allowed: {', '.join(known)}")
        return cls(**(value or {}))
