"""Several completions of one prompt. Upstream twin: `vllm/v1/engine/parallel_sampling.py`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mini_vllm.engine import EngineCoreRequest
from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import SamplingParams


@dataclass
class ParentRequest:
    """Gathers the `n` completions of one prompt; each is a request of its own in the core.

    They share the prompt's blocks by prefix caching alone. A seed, where given, is made different for each.
    Upstream: upstream/vllm/v1/engine/parallel_sampling.py:13 — `ParentRequest`.
    """

    request_id: str
    n: int
    finished: dict[int, CompletionOutput] = field(default_factory=dict)
    num_ended: int = 0
    most_tokens: int = 0

    def child(self, index: int, params: SamplingParams) -> tuple[str, SamplingParams]:
        """Id and parameters of child `index`."""
        child_params = params.clone()
        child_params.n = 1
        if params.seed is not None:
            child_params.seed = params.seed + index
        return f"{index}_{self.request_id}", child_params


def fan_out(request: EngineCoreRequest) -> tuple[ParentRequest, list[EngineCoreRequest]]:
    """What the core gets for a request with n > 1: `n` children, and for the way back the parent that gathers them."""
    parent = ParentRequest(request.request_id, request.sampling_params.n)
    children = [parent.child(index, request.sampling_params) for index in range(parent.n)]
    return parent, [replace(request, request_id=name, sampling_params=params) for name, params in children]
