"""The delta of a batch whose rows have different adapters, in numpy.

    segmented    the rows of each slot together: one small pair of products a slot; right where a slot has many rows
    masked       all rows times all slots in one pair, and what is not a row's own slot set to zero: right where few
                 rows have many adapters, since a call costs more there than its arithmetic

Both give a row `x @ A.T @ B.T` of its own slot, and nothing where it has none (-1).

Upstream twin: `vllm/lora/punica_wrapper/punica_cpu.py`, whose products gather a copy of the weights for each token.
There an index of -1 takes the last slot; a row of the base has nothing added here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.utils.arrays import Array

MASKED_TOKENS = 64
"""Up to so many rows a product with all slots is cheaper than one call a slot: `benchmarks/lora.py`."""


class PunicaWrapperCPU:
    """Which slot each token of the step reads, and the products.

    Args:
        max_loras: slots. max_rank: rows of a slot's buffer.

    Attributes:
        token_lora_indices: [T], the slot of each token, -1: none.

    Upstream: upstream/vllm/lora/punica_wrapper/punica_cpu.py:22 — `PunicaWrapperCPU`.
    """

    def __init__(self, max_loras: int, max_rank: int) -> None:
        self.max_loras, self.max_rank = max_loras, max_rank
        self.update_metadata(np.zeros(0, np.int64))

    def update_metadata(self, token_lora_indices: Array) -> None:
        """Before the forward pass of a step. token_lora_indices: [T].

        Upstream: upstream/vllm/lora/punica_wrapper/punica_base.py:168 — `PunicaWrapperBase._update_base_metadata`.
        """
        self.token_lora_indices = token_lora_indices
        self.no_lora = not len(token_lora_indices) or bool(token_lora_indices.max() < 0)
        self._parts: dict[tuple[int, int], _Part] = {}

    def add_lora_linear(
        self, y: Array, x: Array, lora_a_stacked: Array, lora_b_stacked: Sequence[Array], first: int = 0
    ) -> None:
        """Add each row's delta to `y`, in place.

        Args:
            y: [T, out], any strides. x: [T, in].
            lora_a_stacked: [slices, slots, r, in]. lora_b_stacked: for each slice [slots, r, its outputs].
            first: place in the step of the first row, where `x` is a part of it. Rows behind the step's last token
                (padding of a graph) get nothing.

        Upstream: upstream/vllm/lora/punica_wrapper/punica_cpu.py:265 — `PunicaWrapperCPU.add_lora_linear`.
        """
        if self.no_lora:
            return
        part = self._part(first, first + len(x))
        if part.mask is not None:
            return self._add_masked(y[: part.size], x[: part.size], lora_a_stacked, lora_b_stacked, part.mask)
        for slot, rows in part.groups:
            shrunk = self.shrink(x[rows], lora_a_stacked[:, slot])
            self.expand(y, rows, shrunk, [b[slot] for b in lora_b_stacked])

    @staticmethod
    def shrink(x: Array, lora_a: Array) -> Array:
        """x [t, in] times lora_a [slices, r, in] -> [t, slices * r].

        Upstream: upstream/vllm/lora/punica_wrapper/punica_cpu.py:166 — `PunicaWrapperCPU.add_shrink`.
        """
        return x @ lora_a.reshape(-1, lora_a.shape[-1]).T

    @staticmethod
    def expand(y: Array, rows: slice | Array, shrunk: Array, lora_b: Sequence[Array]) -> None:
        """Add `shrunk [t, slices * r]` times lora_b (for each slice [r, its outputs]) to these rows of y, side by side.

        Upstream: upstream/vllm/lora/punica_wrapper/punica_base.py:57 — `PunicaWrapperABC.add_expand`.
        """
        start = column = 0
        for b in lora_b:
            y[rows, start : start + b.shape[1]] += shrunk[:, column : column + len(b)] @ b
            start, column = start + b.shape[1], column + len(b)

    def _add_masked(self, y: Array, x: Array, a: Array, b: Sequence[Array], mask: Array) -> None:
        width = self.max_loras * self.max_rank
        shrunk = self.shrink(x, a).reshape(len(x), len(b), width)
        np.copyto(shrunk, 0, where=mask[:, None])
        self.expand(y, slice(None), shrunk.reshape(len(x), -1), [each.reshape(width, -1) for each in b])

    def _part(self, start: int, stop: int) -> _Part:
        """What the rows start to stop of the step have; worked out once for all layers."""
        found = self._parts.get((start, stop))
        if found is None:
            found = _Part(self.token_lora_indices[start:stop], self.max_loras, self.max_rank)
            self._parts[start, stop] = found
        return found


class _Part:
    """Some consecutive tokens of a step. `groups`: slot -> its rows, a slice where they are side by side. `mask`:
    [T, slots * r], True where a row must not see a slot; None: the groups are cheaper."""

    def __init__(self, indices: Array, max_loras: int, max_rank: int) -> None:
        self.size = len(indices)
        used = np.unique(indices[indices >= 0]).tolist()
        self.groups = [(slot, _rows(indices == slot)) for slot in used]
        self.mask: Array | None = None
        if len(used) > 1 and self.size <= MASKED_TOKENS:
            self.mask = np.repeat(np.arange(max_loras), max_rank)[None] != indices[:, None]


def _rows(chosen: Array) -> slice | Array:
    rows = np.flatnonzero(chosen)
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows
