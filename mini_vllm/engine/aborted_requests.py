"""Which outputs came too late. vLLM needs no such thing, because it makes the ids of requests unique."""

from __future__ import annotations

from mini_vllm.engine import EngineCoreOutput


class AbortedRequests:
    """Tells outputs that were on their way when their request was aborted from those of a later one of the same id.

    The front end counts its messages to the core, and the core says with each step how many it had heard. Upstream
    makes the ids themselves unique: upstream/vllm/v1/engine/input_processor.py:215 — `assign_request_id`.
    """

    def __init__(self) -> None:
        self.num_sent = 0
        self._at: dict[str, int] = {}

    def note(self, request_ids: list[str]) -> None:
        """The next message aborts these."""
        self.num_sent += 1
        self._at.update(dict.fromkeys(request_ids, self.num_sent))

    def drop_stale(self, outputs: list[EngineCoreOutput], num_inputs: int) -> list[EngineCoreOutput]:
        """What is left of a step before which the core had heard `num_inputs` messages."""
        if not self._at:
            return outputs
        self._at = {request_id: number for request_id, number in self._at.items() if number > num_inputs}
        return [output for output in outputs if output.request_id not in self._at]
