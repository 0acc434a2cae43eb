"""Replicas in threads that meet in every forward pass, as those do that share experts."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from mini_vllm.toy_model import ToyModel

PATIENCE_S = 60.0
MEETINGS: list[Meeting] = []


class Meeting:
    """In the place of a `DataParallelGroup`; the last one made is the one in use."""

    def __init__(self, size: int) -> None:
        self.barrier, self.values = threading.Barrier(size), [0] * size
        MEETINGS.append(self)

    def inherited(self, rank: int) -> Seat:
        return Seat(rank)


class Seat:
    """One replica's half; travels by pickle."""

    fds = ()

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def open(self) -> Seat:
        return self

    def join(self, tp_rank: int, check: Any) -> None:
        """There is nothing to join."""

    def abort(self, reason: str) -> None:
        MEETINGS[-1].barrier.abort()

    def all_reduce(self, values: Any) -> Any:
        meeting = MEETINGS[-1]
        meeting.values[self.rank] = int(values[0])
        meeting.barrier.wait(PATIENCE_S)
        total = sum(meeting.values)
        meeting.barrier.wait(PATIENCE_S)
        return np.array([total])


class InStep(ToyModel):
    """Each forward pass waits for one of every other replica."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        MEETINGS[-1].barrier.wait(PATIENCE_S)
        return super().forward(*args, **kwargs)
