"""The persistent inputs of the graphs: written before each replay, never replaced.

A recording knows addresses, not arguments. So a step is copied into these arrays, and whatever is left of a captured
size is filled such that it does nothing: slot -1 (nothing is written to the KV cache), the null block and length 0
(nothing is read), token and position 0. Upstream twin: `vllm/v1/worker/gpu_model_runner.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.compilation.cudagraph_dispatcher import BatchDescriptor
from mini_vllm.utils.arrays import Array

PAD_SLOT_ID = -1
"""Upstream: upstream/vllm/v1/attention/backends/utils.py:44 — "PAD_SLOT_ID = -1"."""
NULL_BLOCK_ID = 0
"""Upstream: upstream/vllm/v1/attention/backends/utils.py:45 — "NULL_BLOCK_ID = 0"."""


class InputBuffers:
    """Room for the largest step that may be replayed.

    Args:
        max_num_tokens: the largest captured size. max_num_reqs: requests of a step. max_blocks: of one request.
    """

    def __init__(self, max_num_tokens: int, max_num_reqs: int, max_blocks: int) -> None:
        self.input_ids = np.zeros(max_num_tokens, np.int64)
        self.positions = np.zeros(max_num_tokens, np.int64)
        self.slot_mapping = np.full(max_num_tokens, PAD_SLOT_ID, np.int64)
        self.query_start_loc = np.zeros(max_num_reqs + 1, np.int64)
        self.seq_lens = np.zeros(max_num_reqs, np.int64)
        self.block_tables = np.full((max_num_reqs, max_blocks), NULL_BLOCK_ID, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in vars(self).values())

    def inputs(self, num_tokens: int) -> tuple[Array, Array]:
        """Token ids and positions of a captured size, as views: the same addresses every time."""
        return self.input_ids[:num_tokens], self.positions[:num_tokens]

    def metadata(self, key: BatchDescriptor) -> AttentionMetadata:
        """Views for a full graph, whose attention is recorded too."""
        assert key.num_reqs is not None
        return AttentionMetadata(
            self.query_start_loc[: key.num_reqs + 1],
            self.seq_lens[: key.num_reqs],
            self.block_tables[: key.num_reqs],
            self.slot_mapping[: key.num_tokens],
        )

    def load_inputs(self, input_ids: Array, positions: Array, num_padded: int) -> None:
        """Copy a step's tokens and positions; the rest up to the captured size is zero.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3364 — `GPUModelRunner._preprocess`.
        """
        num_tokens = len(input_ids)
        self.input_ids[:num_tokens], self.input_ids[num_tokens:num_padded] = input_ids, 0
        self.positions[:num_tokens], self.positions[num_tokens:num_padded] = positions, 0

    def load_metadata(self, step: AttentionMetadata, key: BatchDescriptor) -> None:
        """Copy what attention has to know, and make the padding harmless.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:2183 — `GPUModelRunner._build_attention_metadata`, and
        upstream/vllm/v1/worker/gpu_model_runner.py:3871 — `GPUModelRunner._get_slot_mappings`.
        """
        assert key.num_reqs is not None
        num_reqs, width = step.block_tables.shape
        num_tokens = step.num_tokens
        self.slot_mapping[:num_tokens], self.slot_mapping[num_tokens : key.num_tokens] = step.slot_mapping, PAD_SLOT_ID
        self.query_start_loc[: num_reqs + 1] = step.query_start_loc
        self.query_start_loc[num_reqs + 1 : key.num_reqs + 1] = num_tokens
        self.seq_lens[:num_reqs], self.seq_lens[num_reqs : key.num_reqs] = step.seq_lens, 0
        self.block_tables[:num_reqs, :width], self.block_tables[:num_reqs, width:] = step.block_tables, NULL_BLOCK_ID
        self.block_tables[num_reqs : key.num_reqs] = NULL_BLOCK_ID
