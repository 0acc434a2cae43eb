"""The delta of a batch whose rows have different adapters, in numpy.

    one by one    the rows of a slot together: one small pair of products a slot; right where a slot has many rows
    together      the rows of all slots, as many of each, in one pair of calls with a loop over the slots inside; right
                  where several slots have few rows each, since a call costs more there than its arithmetic

Both give a row `x @ A.T @ B.T` of its own slot, and nothing where it has none (-1).

Upstream twin: `vllm/lora/punica_wrapper/punica_cpu.py`, whose products gather a copy of the weights for each token.
There an index of -1 takes the last slot; a row of the base has nothing added here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.utils.arrays import Array

TOGETHER_ROWS = 32
"""A slot with more rows is computed by itself: `benchmarks/lora.py`."""
PITCH = 16
"""Numbers between two rows of a result: rows that lie a power of two apart fall into the same places of a cache, and
adding them up, transposed, takes three times as long."""


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
            lora_a_stacked: [slots, slices, r, in]. lora_b_stacked: for each slice [slots, r, its outputs].
            first: place in the step of the first row, where `x` is a part of it. Rows behind the step's last token
                (padding of a graph) get nothing.

        Upstream: upstream/vllm/lora/punica_wrapper/punica_cpu.py:265 — `PunicaWrapperCPU.add_lora_linear`.
        """
        if self.no_lora:
            return
        part = self._part(first, first + len(x))
        if part.together:
            self._add_together(y[: part.size], x[: part.size], lora_a_stacked, lora_b_stacked, part)
        for slot, rows in part.groups:
            self.expand(y, rows, self.shrink(x[rows], lora_a_stacked[slot]), [b[slot] for b in lora_b_stacked])

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
            stop, found = start + b.shape[1], shrunk[:, column : column + len(b)] @ b
            if isinstance(rows, slice):
                _add(y[rows, start:stop], found)
            else:
                y[rows, start:stop] += found
            start, column = stop, column + len(b)

    @staticmethod
    def _add_together(y: Array, x: Array, lora_a: Array, lora_b: Sequence[Array], part: _Part) -> None:
        """Gather rows slot by slot, shrink, expand, and add each row where it came from."""
        a = lora_a[part.slots]
        slots, rank, outputs, rows = len(a), a.shape[2], y.shape[1], part.picked.shape[1]
        shrunk = x[part.picked] @ a.reshape(slots, -1, a.shape[3]).transpose(0, 2, 1)
        found = np.empty((slots * rows + 1, outputs + PITCH), y.dtype)
        found[-1] = 0
        each = found[:-1].reshape(slots, rows, -1)
        start = column = 0
        for b in lora_b:
            stop = start + b.shape[2]
            np.matmul(shrunk[:, :, column : column + rank], b[part.slots], out=each[:, :, start:stop])
            start, column = stop, column + rank
        _add(y, found.take(part.places, axis=0)[:, :outputs])

    def _part(self, start: int, stop: int) -> _Part:
        """What the rows start to stop of the step have; worked out once for all layers."""
        found = self._parts.get((start, stop))
        if found is None:
            found = _Part(self.token_lora_indices[start:stop])
            self._parts[start, stop] = found
        return found


def _add(y: Array, found: Array) -> None:
    """`y += found`, in the order in which y lies in memory: numpy goes by the order of the axes."""
    if y.strides[0] < y.strides[1]:
        y, found = y.T, found.T
    np.add(y, found, out=y)


class _Part:
    """Some consecutive tokens of a step.

    Attributes:
        groups: slot -> its rows, for slots that are computed one by one.
        slots: those that are computed together. picked: [slots, n], their rows, filled up with row 0.
        places: [T], where in `picked`, made flat, a token's row is; behind its end where it is nowhere.
        together: whether there are any.
    """

    def __init__(self, indices: Array) -> None:
        self.size = len(indices)
        used, counts = np.unique(indices[indices >= 0], return_counts=True)
        most = min(TOGETHER_ROWS, max(4, 2 * int(np.median(counts)))) if len(used) else 0
        few = used[counts <= most] if (counts <= most).sum() > 1 else used[:0]
        self.groups = [(slot, _rows(indices == slot)) for slot in used.tolist() if slot not in few]
        self.together = bool(len(few))
        if self.together:
            self._put_together(indices, few)

    def _put_together(self, indices: Array, few: Array) -> None:
        rows = [np.flatnonzero(indices == slot) for slot in few.tolist()]
        width = max(map(len, rows))
        self.slots = slice(int(few[0]), int(few[-1]) + 1) if few[-1] - few[0] + 1 == len(few) else few
        self.picked = np.zeros((len(few), width), np.int64)
        self.places = np.full(self.size, len(few) * width, np.int64)
        for i, its in enumerate(rows):
            self.picked[i, : len(its)] = its
            self.places[its] = np.arange(len(its)) + i * width


def _rows(chosen: Array) -> slice | Array:
    rows = np.flatnonzero(chosen)
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows
