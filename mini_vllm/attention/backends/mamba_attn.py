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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.core.kv_cache_specs import MambaSpec
from mini_vllm.core.sched.output import SchedulerOutput
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
        drafted: where a request goes on from after a step with drafts; None: there are none.

    Upstream: upstream/vllm/v1/attention/backends/mamba_attn.py:79 — `BaseMambaAttentionMetadataBuilder`; the arrays are
    made at upstream/vllm/v1/worker/gpu_model_runner.py:6986 — "elif isinstance(kv_cache_spec, MambaSpec):", on memory
    that all groups share. Here states have memory of their own.
    """

    def __init__(self, spec: MambaSpec, num_layers: int, num_blocks: int, drafted: DraftedStates | None = None) -> None:
        self.block_size, self.writes_all = spec.block_size, spec.mamba_cache_mode == "all"
        self.drafted = drafted
        pairs = list(zip(spec.shapes, spec.dtypes, strict=True))
        self.layers = [
            tuple([np.zeros((num_blocks, *shape), dtype) for shape, dtype in pairs]) for _ in range(num_layers)
        ]

    def begin_step(self, metadata: AttentionMetadata) -> list[LayerState]:
        """For each layer of the group."""
        if self.drafted is not None:
            for row, source, target in self.drafted.copies:
                self._copy(metadata.block_tables[row, source], metadata.block_tables[row, target])
        step = self.build(metadata)
        return [LayerState(arrays, step) for arrays in self.layers]

    def _copy(self, source: int, target: int) -> None:
        for array in (array for arrays in self.layers for array in arrays if target):
            array[target] = array[source]

    def build(self, metadata: AttentionMetadata) -> MambaAttentionMetadata:
        """Who reads and writes where.

        Upstream: upstream/vllm/v1/attention/backends/mamba_attn.py:368 — `_compute_common_metadata`.
        """
        size, starts, tables = self.block_size, metadata.query_start_loc, metadata.block_tables
        lens, requests = metadata.query_lens, np.arange(metadata.num_reqs)
        computed, last = metadata.seq_lens - lens, (metadata.seq_lens - 1) // size
        before, num_drafts = (computed - 1) // size, {}
        if self.drafted is not None:
            num_drafts = self.drafted.num_drafts
            for row, index in self.drafted.sources.items():
                before[row] = index
        source = np.where(computed > 0, tables[requests, before], 0)
        single, pieces = lens == 1, list[StatePiece]()
        for r in (lens > 1).nonzero()[0].tolist():
            ends = self._ends(int(computed[r]), int(metadata.seq_lens[r]), num_drafts.get(r, 0))
            first, done, block = int(starts[r]), int(computed[r]), int(source[r])
            for end, index in ends:
                pieces.append(StatePiece(first, first + end - done, block, int(tables[r, index])))
                first, done, block = first + end - done, end, int(tables[r, index])
        return MambaAttentionMetadata(starts[:-1][single], source[single], tables[requests, last][single], pieces)

    def _ends(self, computed: int, seq_len: int, num_drafts: int) -> list[tuple[int, int]]:
        """After how many tokens a state is kept, and its place in the block table: where a block ends, in "all"; behind
        the last token that is no draft; behind each draft."""
        size, sure = self.block_size, seq_len - num_drafts
        last = (seq_len - 1) // size
        ends = [((j + 1) * size, j) for j in range(computed // size, (sure - 1) // size)] if self.writes_all else []
        return [*ends, *((sure + j, last + j) for j in range(num_drafts + 1))]


class DraftedStates:
    """Where a request goes on from after a step with drafts, of which only some were accepted.

    Such a step leaves a state after its last sure token and after each draft, in blocks that follow each other in the
    block table. Where an accepted draft ends a block of tokens, the state after it is copied to that block's place, so
    that others find it.

    Args:
        block_size: tokens of a block. A step has fewer drafts than that, so that it ends at most one block.

    Attributes:
        num_drafts: row -> drafts of this step. sources: row -> place of the block to go on from, where that is not the
        one of its last token. copies: (row, place, place) of states to be copied first.

    Upstream: upstream/vllm/v1/worker/mamba_utils.py:640 — `preprocess_mamba`, `:751` — `postprocess_mamba_align_gpu`.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_drafts: dict[int, int] = {}
        self.sources: dict[int, int] = {}
        self.copies: list[tuple[int, int, int]] = []
        self._left: dict[str, tuple[int, int]] = {}  # request -> sure tokens of its last step, place of their state

    def begin_step(self, req_ids: Sequence[str], metadata: AttentionMetadata, plan: SchedulerOutput) -> None:
        """req_ids: of the rows. Called once a step, before the backends of all groups are asked."""
        self.num_drafts, self.sources, self.copies = {}, {}, []
        begun = (new.req_id for new in plan.scheduled_new_reqs)  # with an id that ended in a step without tokens
        resumed = plan.scheduled_cached_reqs.resumed_req_ids
        for req_id in (*plan.finished_req_ids, *plan.preempted_req_ids, *resumed, *begun):
            self._left.pop(req_id, None)
        for row, req_id in enumerate(req_ids):
            seq_len = int(metadata.seq_lens[row])
            left = self._left.pop(req_id, None)
            if left is not None:
                self._go_on(row, seq_len - int(metadata.query_lens[row]), *left)
            if num_drafts := len(plan.scheduled_spec_decode_tokens.get(req_id, ())):
                self.num_drafts[row] = num_drafts
                self._left[req_id] = seq_len - num_drafts, (seq_len - 1) // self.block_size

    def _go_on(self, row: int, computed: int, sure: int, place: int) -> None:
        """computed: tokens that turned out right. sure: tokens before the drafts."""
        self.sources[row] = place + computed - sure
        aligned = computed // self.block_size * self.block_size
        if aligned >= sure:
            self.copies.append((row, place + aligned - sure, aligned // self.block_size - 1))
