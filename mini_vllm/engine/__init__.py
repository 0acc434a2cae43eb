"""From a prompt to text, around the core's loop. Here: the messages between the core and the front end.

Upstream twin: `vllm/v1/engine/__init__.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FinishReason(str, enum.Enum):
    """Why a request ended. The values are the strings of the API.

    Upstream: upstream/vllm/v1/engine/__init__.py:42 — `FinishReason`.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"

    def __str__(self) -> str:
        return self.value


class EngineCoreEventType(enum.IntEnum):
    """What happened to a request in the core.

    Upstream: upstream/vllm/v1/engine/__init__.py:141 — `EngineCoreEventType`.
    """

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


@dataclass(slots=True)
class EngineCoreEvent:
    """One of them, with its time in seconds on the core's clock (`time.monotonic`).

    Upstream: upstream/vllm/v1/engine/__init__.py:149 — `EngineCoreEvent`.
    """

    type: EngineCoreEventType
    timestamp: float


@dataclass(slots=True)
class EngineCoreOutput:
    """What one step gave for one request: from the engine core to the front end.

    Upstream: upstream/vllm/v1/engine/__init__.py:168 — `EngineCoreOutput`.
    """

    request_id: str
    new_token_ids: list[int]
    new_logprobs: list[dict[int, tuple[float, int]]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    events: list[EngineCoreEvent] | None = None

    @property
    def finished(self) -> bool:
        """True when this is the last output of the request."""
        return self.finish_reason is not None


def __getattr__(name: str) -> object:
    """What stood here before it moved: an error that says where it is now."""
    from mini_vllm.moved import missing

    raise missing(__name__, name)
