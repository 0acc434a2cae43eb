"""From a step's arrays to tensors on the device: one pinned buffer, one copy that nobody waits for.

Upstream twins: `vllm/v1/worker/gpu/buffer_utils.py`, `vllm/v1/worker/gpu/input_batch.py` (`InputBuffers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mini_vllm.compilation.cuda_ops import DeviceMetadata
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.worker.model_runner import ModelInputs

_RING = 3
"""Steps that may be on their way at once, and one more."""


def to_device(array: Array, device: torch.device) -> torch.Tensor:
    """A copy on the device that nobody waits for: from pageable memory the host would wait for all work before it.

    Upstream: upstream/vllm/v1/worker/gpu/buffer_utils.py:17 — `async_copy_to_gpu`.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass
class DeviceInputs:
    """A step on the device. input_ids, positions [T] int32; sources [T]: which of the tokens sampled in the step before
    stands here, -1: none, the id is known."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    sources: torch.Tensor
    metadata: DeviceMetadata


class InputBuffers:
    """Stages steps of at most `max_num_tokens` tokens and `max_num_reqs` requests with `max_blocks` blocks each.

    Upstream: upstream/vllm/v1/worker/gpu/input_batch.py:12 — `InputBuffers`.
    """

    def __init__(self, max_num_tokens: int, max_num_reqs: int, max_blocks: int, device: torch.device) -> None:
        self.max_blocks, self.device = max_blocks, device
        size = 4 * max_num_tokens + 2 * max_num_reqs + 1 + max_num_reqs * max_blocks
        self.on_device = torch.zeros(size, dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self._ring = [torch.zeros(size, dtype=torch.int32, pin_memory=pinned) for _ in range(_RING if pinned else 1)]
        self._events = [torch.cuda.Event() for _ in self._ring] if pinned else []
        self._turn = 0

    def stage(self, inputs: ModelInputs, sources: Array, num_tokens: int, num_reqs: int) -> DeviceInputs:
        """Copy a step, padded to these numbers: further tokens have no slot, further requests no tokens."""
        self._turn = (self._turn + 1) % len(self._ring)
        if self._events:
            self._events[self._turn].synchronize()  # its last copy: three steps ago
        host = self._ring[self._turn].numpy()
        m, real, reqs = inputs.metadata, len(inputs.input_ids), len(inputs.metadata.seq_lens)
        tokens = host[: 4 * num_tokens].reshape(4, num_tokens)
        tokens[:, :real] = inputs.input_ids, inputs.positions, m.slot_mapping, sources
        tokens[:2, real:], tokens[2:, real:] = 0, -1
        at = 4 * num_tokens
        host[at : at + reqs + 1], host[at + reqs + 1 : at + num_reqs + 1] = m.query_start_loc, real
        at += num_reqs + 1
        host[at : at + reqs], host[at + reqs : at + num_reqs] = m.seq_lens, 0
        at += num_reqs
        table = host[at : at + num_reqs * self.max_blocks].reshape(num_reqs, self.max_blocks)
        table[:reqs, : m.block_tables.shape[1]] = m.block_tables
        size = at + table.size
        self.on_device[:size].copy_(self._ring[self._turn][:size], non_blocking=True)
        if self._events:
            self._events[self._turn].record()
        return self.views(num_tokens, num_reqs, int(np.diff(m.query_start_loc).max()))

    def views(self, num_tokens: int, num_reqs: int, max_query_len: int) -> DeviceInputs:
        """The tensors of a step of this size: always at the same addresses, so that a graph may hold them."""
        on = self.on_device
        ids, positions, slots, sources = on[: 4 * num_tokens].view(4, num_tokens)
        starts, at = on[4 * num_tokens :], 4 * num_tokens + 2 * num_reqs + 1
        table = on[at : at + num_reqs * self.max_blocks].view(num_reqs, self.max_blocks)
        metadata = DeviceMetadata(
            starts[: num_reqs + 1], starts[num_reqs + 1 : 2 * num_reqs + 1], table, slots, max_query_len
        )
        return DeviceInputs(ids, positions, sources, metadata)
