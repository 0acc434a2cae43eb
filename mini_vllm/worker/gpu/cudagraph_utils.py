"""Real CUDA graphs for steps in which every request has one token.

The whole forward pass of such a step, from ids to logits, is recorded once for each of some batch sizes; a step is
padded to the next of them and replayed by one launch. Steps with chunks of prompts are launched kernel by kernel.
Upstream twin: `vllm/v1/worker/gpu/cudagraph_utils.py`; it also has piecewise graphs for those.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch

from mini_vllm.worker.gpu.buffer_utils import DeviceInputs, InputBuffers


def capture_sizes(max_num_seqs: int, wanted: Sequence[int] | None = None) -> list[int]:
    """Ascending batch sizes: 1, 2, 4, then every eighth to 256, every sixteenth beyond, up to `max_num_seqs`.

    Upstream: upstream/vllm/config/vllm.py:1606 — "cudagraph_capture_sizes = [1, 2, 4]".
    """
    sizes = wanted or [1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs + 16, 16)]
    return sorted({min(size, max_num_seqs) for size in sizes})


class DecodeGraphs:
    """Args:
        compute: ids to logits, on tensors at fixed addresses.
        buffers: where those are.
        sizes: batch sizes to record, ascending; see `capture_sizes`.

    Upstream: upstream/vllm/v1/worker/gpu/cudagraph_utils.py:86 — `CudaGraphManager`.
    """

    def __init__(
        self, compute: Callable[[DeviceInputs], torch.Tensor], buffers: InputBuffers, sizes: Sequence[int]
    ) -> None:
        self.sizes = list(sizes)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        pool = None
        for size in reversed(self.sizes):  # the largest first: the others fit into its memory
            inputs = buffers.views(size, size, 1)
            buffers.on_device.zero_()
            inputs.metadata.slot_mapping.fill_(-1)
            inputs.sources.fill_(-1)
            compute(inputs)  # compiles what has to be compiled
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = compute(inputs)
            pool = pool or graph.pool()
            self._graphs[size] = graph, logits

    def padded(self, num_reqs: int) -> int | None:
        """The batch size that serves this many requests; None: none is large enough."""
        at = bisect_left(self.sizes, num_reqs)
        return self.sizes[at] if at < len(self.sizes) else None

    def replay(self, size: int) -> torch.Tensor:
        """Logits [size, V], of what the buffers hold; valid until the next replay."""
        graph, logits = self._graphs[size]
        graph.replay()
        return logits
