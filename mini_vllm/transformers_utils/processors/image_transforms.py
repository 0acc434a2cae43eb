"""Pixels: resize, crop, rescale, normalise. The same numbers as Pillow's and transformers', without either of them.

Pillow computes in whole numbers: weights have 22 bits after the point, the width of a picture is changed first, then
its height, and what is between them is rounded to whole bytes. Here the sums are products of float64 matrices, which
hold these whole numbers exactly. (Pillow 13 changes the height first in some cases where a picture's proportions
change; its bytes then differ from these.)

Upstream takes all of it from transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array

_BITS = 22
_BLOCK, _ROWS = 32, 4096
"""Outputs, and lines, that are computed at a time."""


def _lanczos(x: Array) -> Array:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


def _bilinear(x: Array) -> Array:
    return np.maximum(1 - np.abs(x), 0.0)


def _bicubic(x: Array) -> Array:
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0.0))


FILTERS: dict[int, tuple[Callable[[Array], Array], float]] = {1: (_lanczos, 3.0), 2: (_bilinear, 1.0),
                                                              3: (_bicubic, 2.0)}  # fmt: skip
"""Pillow's number of a filter -> its function, and how far it reaches."""


@lru_cache(maxsize=64)
def _coefficients(size: int, new_size: int, resample: int) -> tuple[Array, list[Array]]:
    """For each output the first input that it takes, and the weights of that and of the following ones."""
    function, reach = FILTERS[resample]
    scale = size / new_size
    stretch = max(scale, 1.0)
    firsts, weights = [], []
    for out in range(new_size):
        center = (out + 0.5) * scale
        first = max(int(center - reach * stretch + 0.5), 0)
        last = min(int(center + reach * stretch + 0.5), size)
        each = function((np.arange(first, last) - center + 0.5) / stretch)
        each = each / each.sum() * (1 << _BITS)
        firsts.append(first)
        weights.append(np.trunc(each + np.copysign(0.5, each)))
    return np.array(firsts), weights


def _resize_lines(lines: Array, new_size: int, resample: int, out: Array) -> None:
    """lines: uint8 [size, n]; out: uint8 [new_size, n]."""
    firsts, weights = _coefficients(len(lines), new_size, resample)
    for begin in range(0, new_size, _BLOCK):
        block = range(begin, min(begin + _BLOCK, new_size))
        low, high = int(firsts[begin]), max(int(firsts[i]) + len(weights[i]) for i in block)
        matrix = np.zeros((len(block), high - low))
        for row, i in enumerate(block):
            matrix[row, firsts[i] - low : firsts[i] - low + len(weights[i])] = weights[i]
        for at in range(0, lines.shape[1], _ROWS):
            part = slice(at, at + _ROWS)
            sums = matrix @ lines[low:high, part].astype(np.float64)
            rounded = np.floor((sums + (1 << (_BITS - 1))) / (1 << _BITS))
            out[begin : block.stop, part] = np.clip(rounded, 0, 255)


def resize(image: Array, height: int, width: int, resample: int = 3) -> Array:
    """uint8 [H, W, C] -> uint8 [height, width, C], byte for byte as Pillow's `Image.resize` in the order told above.

    resample: Pillow's number of the filter: 1 Lanczos, 2 bilinear, 3 bicubic.
    """
    rows, columns, channels = image.shape
    if columns != width:
        wide = np.empty((rows, width, channels), np.uint8)
        for channel in range(channels):
            _resize_lines(image[:, :, channel].T, width, resample, wide[:, :, channel].T)
        image = wide
    if rows != height:
        tall = np.empty((height, width, channels), np.uint8)
        _resize_lines(image.reshape(rows, -1), height, resample, tall.reshape(height, -1))
        image = tall
    return image


def get_resize_output_image_size(height: int, width: int, shortest_edge: int) -> tuple[int, int]:
    """The size at which the shorter side has `shortest_edge` pixels, and the other is in proportion."""
    short, long = min(height, width), max(height, width)
    longer = int(shortest_edge * long / short)
    return (longer, shortest_edge) if height > width else (shortest_edge, longer)


def center_crop(image: Array, height: int, width: int) -> Array:
    """[H, W, C] -> [height, width, C]: the middle; where the picture is smaller, zeros around it."""
    rows, columns = image.shape[:2]
    if rows < height or columns < width:
        tall, broad = max(rows, height), max(columns, width)
        top, left = -(-(tall - rows) // 2), -(-(broad - columns) // 2)
        padded = np.zeros((tall, broad, image.shape[2]), image.dtype)
        padded[top : top + rows, left : left + columns] = image
        image, rows, columns = padded, tall, broad
    top, left = (rows - height) // 2, (columns - width) // 2
    return image[top : top + height, left : left + width]


def rescale_and_normalize(
    image: Array, factor: float | None, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Array:
    """[H, W, C] -> float32 [C, H, W]: times `factor`, less `mean`, by `std`; each is left out where it is None."""
    pixels: Any = image.astype(np.float64)
    if factor is not None:
        pixels = pixels * factor
    pixels = pixels.astype(np.float32)
    if mean is not None and std is not None:
        pixels = (pixels - np.array(mean, np.float32)) / np.array(std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
