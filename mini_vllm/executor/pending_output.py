"""A step's result that may not be there yet.

Upstream has a `Future`: `vllm/v1/executor/multiproc_executor.py` (`FutureWrapper`).
"""

from __future__ import annotations

from typing import Protocol

from mini_vllm.outputs import ModelRunnerOutput


class PendingOutput(Protocol):
    """What an executor hands out before it knows."""

    def done(self) -> bool:
        """Whether `result` need not wait."""

    def result(self) -> ModelRunnerOutput:
        """Wait for it. Raises what computing it raised."""


class ComputedOutput:
    """A result that this process has. Not `done` unless said so: then the order of decisions is that of a device which
    goes on computing by itself."""

    def __init__(self, output: ModelRunnerOutput, is_done: bool = False) -> None:
        self.output, self.is_done = output, is_done

    def done(self) -> bool:
        """As said."""
        return self.is_done

    def result(self) -> ModelRunnerOutput:
        """At once."""
        return self.output
