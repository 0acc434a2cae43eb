"""What attention has to know about a step, the same for all layers. Upstream twin: `vllm/v1/attention/backend.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class AttentionMetadata:
    """A ragged batch of R requests with T tokens, one request after the other.

    query_start_loc [R + 1]: first token of each request, then T.
    seq_lens [R]: tokens of each request whose keys are in the cache once this step has written its own.
    block_tables [R, max_blocks]: physical block of each logical block; entries past a request's last are 0.
    slot_mapping [T]: where each token's key and value go, block * block_size + offset.

    A step that is padded for a CUDA graph has more: requests after the last real one with no tokens, seq_lens 0 and the
    null block, and tokens past query_start_loc[R] with slot -1. Nothing is written or computed for them.

    Upstream: upstream/vllm/v1/attention/backend.py:353 — `CommonAttentionMetadata`.
    """

    query_start_loc: Array
    seq_lens: Array
    block_tables: Array
    slot_mapping: Array

    @property
    def num_reqs(self) -> int:
        """R."""
        return len(self.seq_lens)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.slot_mapping)

    @property
    def query_lens(self) -> Array:
        """Tokens of each request in this step, [R]."""
        return np.diff(self.query_start_loc)

    def without_padding(self) -> AttentionMetadata:
        """The real requests and tokens alone; itself where nothing is padded."""
        num_tokens = int(self.query_start_loc[-1])
        if num_tokens == self.num_tokens and self.query_start_loc[-2] < num_tokens:
            return self
        num_reqs = int(np.searchsorted(self.query_start_loc, num_tokens))
        return AttentionMetadata(
            self.query_start_loc[: num_reqs + 1],
            self.seq_lens[:num_reqs],
            self.block_tables[:num_reqs],
            self.slot_mapping[:num_tokens],
        )
