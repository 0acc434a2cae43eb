"""Waiting for ranks of other replicas, and knowing when one will not come. Upstream leaves that to the time limits of
torch.distributed, and to whoever watches the processes.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup

_LOOK_S = 0.05
_STATES = {"T": "its process is stopped (SIGSTOP)", "t": "its process is held by a debugger"}


class ReplicaGoneError(RuntimeError):
    """A rank of another replica comes to no exchange any more; the message says which, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}. The replicas cannot go on: make a new engine.")


class Patience:
    """Called while ranks of a column are waited for, to come to the `count`-th meeting. Raises where one will not come;
    those that have come may go."""

    def __init__(self, group: DataParallelGroup, column: list[int], count: int) -> None:
        self.group, self.column, self.count = group, column, count
        self._start = self._last = time.monotonic()

    def __call__(self) -> None:
        self.group.check()
        if (now := time.monotonic()) < self._last + _LOOK_S:
            return
        self._last = now
        missing = [rank for rank in self.column if self.group.num_meetings(rank) < self.count]
        found = (self._why_not(rank, now - self._start) for rank in missing)
        if why := next((each for each in found if each is not None), None):
            raise ReplicaGoneError(why)

    def _why_not(self, rank: int, waited: float) -> str | None:
        group = self.group
        if (failure := group.failure_of(rank)) is not None:
            return failure
        if (state := _state_of(group.pid(rank))) in ("", "Z", "X"):
            return f"{group.name(rank)} died"
        if os.getppid() != group.parent:
            return f"the process that started data-parallel rank {group.dp_rank} is gone"
        if waited < group.timeout:
            return None
        how = _STATES.get(state, "its process is there, but does not get on")
        return f"{group.name(rank)} has not come to an exchange of the replicas for {group.timeout:g} s: {how}"


def _state_of(pid: int) -> str:
    """The state letter of a process, "" where there is none; "?" of a rank that has not joined yet, or where the system
    does not tell."""
    if not pid or not os.path.isdir("/proc/self"):
        return "?"
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
