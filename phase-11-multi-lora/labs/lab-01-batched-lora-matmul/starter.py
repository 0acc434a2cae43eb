"""Lab 11-01: one batch, one frozen weight, and for each row a patch of its own.

Shapes: x [T, in] · W [out, in] · A [r, in] · B [out, r]. An adapter stands for the weight W + scaling · B · A.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def lora_delta(x: np.ndarray, A: np.ndarray, B: np.ndarray, scaling: float) -> np.ndarray:
    """What the adapter adds to the outputs of these rows.

    Nothing with as many numbers as the weight has is made on the way.

    Returns:
        [T, out].

    Raises:
        ValueError: "A must have 32 inputs, got shape (4, 30)"; "A and B must have one rank, got (4, 32) and (24, 5)".
    """
    raise NotImplementedError("what the adapter adds to each row")


def apply_single(x: np.ndarray, W: np.ndarray, A: np.ndarray, B: np.ndarray, scaling: float) -> np.ndarray:
    """The layer's outputs, [T, out], where all rows have one adapter: a fine-tune with a server of its own."""
    raise NotImplementedError("the outputs of all rows under one adapter")


def apply_batched(
    x: np.ndarray,
    W: np.ndarray,
    adapters: Sequence[tuple[np.ndarray, np.ndarray] | None],
    adapter_ids: np.ndarray,
    scalings: Sequence[float],
) -> np.ndarray:
    """The layer's outputs where each row has an adapter of its own, or none.

    Row t gets what `apply_single` would give it with adapter `adapter_ids[t]`; for -1, and where `adapters` has None,
    it is x[t] · Wᵀ. Neighbours never matter: not where they stand, and not if their adapter holds NaN.

    The base's product is computed once, for all rows together. Of further matrix products there are at most two for
    each different adapter in the batch, however many rows it has, and nothing as large as W is made. Adapters may have
    different ranks. No argument is changed.

    Args:
        adapters: (A, B) by adapter id. adapter_ids: [T], integers. scalings: by adapter id.

    Returns:
        [T, out].

    Raises:
        ValueError: "adapter_ids must have one entry a row (3), got 2"; "adapter 7 is not there: there are 3, and -1 is
            none".
    """
    raise NotImplementedError("each row as if it had been served alone")


def set_slot(
    A_stack: np.ndarray, B_stack: np.ndarray, index: int, A: np.ndarray, B: np.ndarray, scaling: float
) -> None:
    """Put an adapter into a slot, whatever was in it before. Afterwards nobody has to know its rank or its scaling.

    Args:
        A_stack: [slots, R, in]. B_stack: [slots, out, R]. Both are changed, in this slot alone.
        A: [r, in], B: [out, r], r at most R. They are copied: the caller may change them afterwards.

    Raises:
        ValueError: "rank 16 is above the slots' 8". Then nothing has been changed.
    """
    raise NotImplementedError("the slot holds this adapter, and nothing of the one before")


def add_deltas(y: np.ndarray, x: np.ndarray, A_stack: np.ndarray, B_stack: np.ndarray, slots: np.ndarray) -> None:
    """Add to each row of `y`, in place, what the adapter in its slot adds. This is what the engine calls.

    Rows of -1 keep every bit, and so does everybody if a slot that no row uses holds NaN. There are at most two matrix
    products for each different slot in the batch.

    Args:
        y: [T, out], may be a view with any strides. x: [T, in].
        A_stack: [slots, R, in]. B_stack: [slots, out, R]. slots: [T], -1: no adapter.

    Raises:
        ValueError: "slots must have one entry a row (3), got 2"; "slot 4 is not there: there are 4, and -1 is none".
            Then `y` has not been changed.
    """
    raise NotImplementedError("each row of y has gained what the adapter in its slot adds")
