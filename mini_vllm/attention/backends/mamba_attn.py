"""States in the place of keys and values: their arrays, and which of them each request of a step reads and writes.

A layer's arrays are [num_blocks, *shape], one for each of `MambaSpec.shapes`. Block 0, the null block, stays zero, as
the state of a text without tokens is. A request reads the block of its last computed token and writes that of the last
token of the step:

    block of token t:  block table[t // block_size]

| mode | a request's blocks | written in a step |
|---|---|---|
| none | one, for all its tokens | that one |
| align | the last, and the one before it | the one of the step's last token |
| all | one for every `block_size` tokens | each one that the step's tokens reach |

Upstream twin: `vllm/v1/attention/backends/mamba_attn.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.kv_cache_specs import MambaSpec
from mini_vllm.utils.arrays import Array


class StatePiece(NamedTuple):
    """Consecutive tokens of one request, `first` to `last` of the step's: block `source` is gone on from, the state
    after them goes to block `target`."""

    first: int
    last: int
    source: int
    target: int


@dataclass(slots=True)
class MambaAttentionMetadata:
    """A step, as layers with a state see it.

    Attributes:
        decode_rows [D]: tokens that are their request's only one in this step.
        state_indices_input, state_indices_output [D]: the blocks that these read and write.
        pieces: of the other requests, in the order of their tokens.

    Upstream: upstream/vllm/v1/attention/backends/mamba_attn.py:30 — `BaseMambaAttentionMetadata`.
    """

    decode_rows: Array
    state_indices_input: Array
    state_indices_output: Array
    pieces: list[StatePiece]


class LayerState(NamedTuple):
    """What a layer is handed in a step: its arrays, [num_blocks, *shape] each, and who reads and writes where."""

    arrays: tuple[Array, ...]
    metadata: MambaAttentionMetadata


class MambaAttentionBackend:
    """The states of the layers of one KV cache group.

    Args:
        spec: of the group.
        num_layers: of the group. num_blocks: of the pool, the null block included.

    Raises:
        ValueError: the spec has blocks for drafts; the scheduler manages them, no layer here fills them.

    Upstream: upstream/vllm/v1/attention/backends/mamba_attn.py:79 — `BaseMambaAttentionMetadataBuilder`; the arrays are
    made at upstream/vllm/v1/worker/gpu_model_runner.py:6986 — "elif isinstance(kv_cache_spec, MambaSpec):", on memory
    that all groups share. Here states have memory of their own.
    """

    def __init__(self, spec: MambaSpec, num_layers: int, num_blocks: int) -> None:
        if spec.num_speculative_blocks:
            raise ValueError(f"num_speculative_blocks must be 0 to run a model, got {spec.num_speculative_blocks}")
        self.block_size, self.writes_all = spec.block_size, spec.mamba_cache_mode == "all"
        pairs = list(zip(spec.shapes, spec.dtypes, strict=True))
        self.layers = [
            tuple([np.zeros((num_blocks, *shape), dtype) for shape, dtype in pairs]) for _ in range(num_layers)
        ]

    def begin_step(self, metadata: AttentionMetadata) -> list[LayerState]:
        """For each layer of the group."""
        step = self.build(metadata)
        return [LayerState(arrays, step) for arrays in self.layers]

    def build(self, metadata: AttentionMetadata) -> MambaAttentionMetadata:
        """Who reads and writes where.

        Upstream: upstream/vllm/v1/attention/backends/mamba_attn.py:368 — `_compute_common_metadata`.
        """
        size, starts, tables = self.block_size, metadata.query_start_loc, metadata.block_tables
        lens, requests = metadata.query_lens, np.arange(metadata.num_reqs)
        computed, last = metadata.seq_lens - lens, (metadata.seq_lens - 1) // size
        source = np.where(computed > 0, tables[requests, (computed - 1) // size], 0)
        target = tables[requests, last]
        single, pieces = lens == 1, []
        for r in (lens > 1).nonzero()[0].tolist():
            first, done, block = int(starts[r]), int(computed[r]), int(source[r])
            for j in range(done // size if self.writes_all else int(last[r]), int(last[r]) + 1):
                stop = min(int(metadata.seq_lens[r]), (j + 1) * size)
                pieces.append(StatePiece(first, first + stop - done, block, int(tables[r, j])))
                first, done, block = first + stop - done, stop, int(tables[r, j])
        return MambaAttentionMetadata(starts[:-1][single], source[single], target[single], pieces)
