"""Lab 06-07: fitting four-bit codes to calibration inputs, by GPTQ and by AWQ, and deciding what leaves the house.

Throughout, W is a weight [out, in] and X are inputs of its layer [rows, in], both float64; the layer computes X @ W.T.
Codes are int8 numbers from -7 to 7; `group_size` neighbouring codes of a row share a scale. No argument is changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
CODE_MAX = 7


def predicted() -> dict[str, int]:
    """Three guesses, each one of 8, 16, 32, 64, 128, 256, 512, 1024: numbers of calibration rows for `gptq`.

    "worst 7": layer 7 of pocket, 256 inputs, groups of 64. With how many rows is the error of the outputs on *other*
    rows the largest? "pays 7": what is the smallest number with which it is smaller than that of rounding? "pays 4":
    the same question for layer 4, of whose inputs one channel is 30 times as loud as the median (8 times in layer 7).
    """
    raise NotImplementedError("three numbers of rows, guessed before any is measured")


def group_scales(W: Array, group_size: int) -> Array:
    """Given. Scales [out, in / group_size]: the largest magnitude of each group over 7; 1 where a group is zero.

    Raises:
        ValueError: "group_size must divide the 256 inputs, got 5".
    """
    if group_size < 1 or W.shape[1] % group_size:
        raise ValueError(f"group_size must divide the {W.shape[1]} inputs, got {group_size}")
    largest = np.abs(W.reshape(len(W), -1, group_size)).max(axis=2) / CODE_MAX
    return np.where(largest > 0, largest, 1.0)


def round_to_nearest(W: Array, group_size: int) -> tuple[Array, Array]:
    """Given. What lab 06-03 does: (q int8 [out, in], scales); no input is looked at."""
    scales = group_scales(W, group_size)
    q = np.rint(W / np.repeat(scales, group_size, axis=1))
    return np.clip(q, -CODE_MAX, CODE_MAX).astype(np.int8), scales


def dequantize(q: Array, scales: Array, group_size: int) -> Array:
    """Given. The weight [out, in] that the codes stand for."""
    return q * np.repeat(scales, group_size, axis=1)


def output_error(W: Array, W_hat: Array, X: Array) -> float:
    """How much the layer's outputs on X change when W_hat stands in the place of W, as a share of the outputs.

    Both are lengths over all rows and outputs together (the root of the sum of squares). 0.0: nothing changes. An error
    in a weight counts by the inputs that it meets: by nothing, where these are 0.
    """
    raise NotImplementedError("the change of the outputs on X, as a share of the outputs")


def gptq(W: Array, X: Array, group_size: int, damp: float = 0.01) -> tuple[Array, Array]:
    """Codes that are fixed one input column after the other, from the left, while the rest makes up for the error.

    A column is fixed by rounding it as it stands by then. After that, and before the next is fixed, the columns not yet
    fixed are, as real numbers, those that make the damped error on X the least that it can still be. The damped error
    of W_hat: the squared length of X @ (W_hat - W).T, plus that of (W_hat - W) times `damp` times the mean of the
    diagonal of X.T @ X.

    Args:
        damp: a number more than 0, not NaN; without it fewer rows than inputs would leave the answer open.

    Returns:
        (q int8 [out, in], scales): the scales are those of W (`group_scales`), whatever the columns become.

    Raises:
        ValueError: "X must have the 256 columns of W, got shape (8, 255)"; "X must be finite"; "X must not be all
            zero"; "damp must be positive, got 0"; and what `group_scales` refuses.

    Source: https://arxiv.org/abs/2210.17323.
    """
    raise NotImplementedError(
        "codes of which each column was rounded after the rest made up for those before it, and W's scales"
    )


def awq(W: Array, X: Array, group_size: int) -> tuple[Array, Array, Array]:
    """Codes of a weight whose input columns were made larger or smaller first, by how loud these inputs are in X.

    Returns:
        (q, scales, c): c [in] is finite and more than 0; the weight in use is `dequantize(q, scales, group_size) / c`.
        q and scales are what `round_to_nearest` gives for W * c. On X its `output_error` is never larger than that of
        rounding W itself, and where some inputs are much louder than others it is much smaller. One number, found on X,
        says how far c follows the loudness, from not at all to wholly.

    Raises:
        ValueError: as `gptq`, the sentence about damp aside.

    Source: https://arxiv.org/abs/2306.00978.
    """
    raise NotImplementedError("codes and scales of W times c, and the c with which the outputs on X change least")


def ship(W: Array, X: Array, group_size: int) -> tuple[Array, Array, Array]:
    """What you would put into the checkpoint, if X is all that you are given.

    Returns:
        (q, scales, c), to be used as `awq`'s are; c is 1 everywhere where no column was scaled. The served model sees
        other rows than X, of the same kind. On those, whatever the number of rows in X, and with a loud channel
        (layer 4 of pocket) or without (layer 7), the error exceeds that of rounding by 5 % at most, by 10 % if X has
        fewer than 16 rows. What the rows are good for is used: how much has to be gained, and where, stands in the
        README under "What `ship` has to gain", behind your prediction.

    Raises:
        ValueError: as `awq`.
    """
    raise NotImplementedError("codes, scales and c that will do well on rows that are not in X")
