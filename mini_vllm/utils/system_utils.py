"""Processes, as the system sees them. Upstream twin: `vllm/utils/system_utils.py`."""

from __future__ import annotations

import os


class Owner:
    """The process that made a thing of which others hold a half: ranks, a core, threads, an event loop.

    A fork of it has copies of the pipes, the sockets and the shared memory. Whoever reads or writes them there takes
    what is meant for the process that made them, so each door asks here first. A plain engine needs none: all that it
    has is copied.

    Upstream has no twin.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def refusal(self) -> str | None:
        """None in the process itself; in a fork of it, what to say to whoever asks."""
        if (here := os.getpid()) == self._pid:
            return None
        return (
            f"this process, {here}, was forked from process {self._pid}, to which the engine belongs: ask it there. "
            "Make a new engine here, in a process that was spawned or forked before there was one"
        )
