"""What one stage of a pipeline hands to the next. Upstream twin: `vllm/sequence.py`."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.utils.arrays import Array


@dataclass(slots=True)
class IntermediateTensors:
    """Arrays of a step by name, each [T, …]: here "hidden_states" [T, H] alone, where upstream's layers hand on a
    residual beside them.

    Upstream: upstream/vllm/sequence.py:18 — `IntermediateTensors`.
    """

    tensors: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]
