"""Pixels: resize, crop, rescale, normalise. The same numbers as Pillow's and transformers', without either of them.

Pillow computes in whole numbers: weights have 22 bits after the point, the width of a picture is changed first, then
its height, and what is between them is rounded to whole bytes. Here the sums are products of float64 matrices, which
hold these whole numbers exactly. (Pillow 13 changes the height first in some cases where a picture's proportions
change; its bytes then differ from these.)

Upstream takes all of it from transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array

_BITS = 22
_BLOCK, _BAND, _PRODUCT = 16, 1 << 20, 1 << 18
"""Outputs that one product has (larger blocks multiply with more zeros), numbers that are laid out at a time, and
multiplications of one product: OpenBLAS keeps products up to this size on the thread that asks. Its own threads spin
where they wait for each other, and on a busy machine a picture took twenty times as long with them."""


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
def _coefficients(size: int, new_size: int, resample: int, start: int, stop: int) -> tuple[Array, list[Array]]:
    """For each output from `start` to `stop` the first input that it takes, and the weights of that and of those after
    it."""
    function, reach = FILTERS[resample]
    scale = size / new_size
    stretch = max(scale, 1.0)
    firsts, weights = [], []
    for out in range(start, stop):
        center = (out + 0.5) * scale
        first = max(int(center - reach * stretch + 0.5), 0)
        last = min(int(center + reach * stretch + 0.5), size)
        each = function((np.arange(first, last) - center + 0.5) / stretch)
        each = each / each.sum() * (1 << _BITS)
        firsts.append(first)
        weights.append(np.trunc(each + np.copysign(0.5, each)))
    return np.array(firsts), weights


Side = tuple[int, int, int]
"""A side of the result: how long it is, and from where to where it is wanted."""


def _products(size: int, side: Side, resample: int) -> Iterator[tuple[slice, slice, Array]]:
    """Outputs, the inputs that they take, and the weights [inputs, outputs] between them, block by block. Outputs are
    counted from the first that is wanted."""
    firsts, weights = _coefficients(size, side[0], resample, *side[1:])
    for begin in range(0, len(firsts), _BLOCK):
        block = range(begin, min(begin + _BLOCK, len(firsts)))
        low, high = int(firsts[begin]), max(int(firsts[i]) + len(weights[i]) for i in block)
        matrix = np.zeros((high - low, len(block)))
        for column, i in enumerate(block):
            matrix[firsts[i] - low : firsts[i] - low + len(weights[i]), column] = weights[i]
        yield slice(begin, block.stop), slice(low, high), matrix


def _pieces(count: int, matrix: Array) -> Iterator[slice]:
    """Lines that are multiplied with this matrix at a time."""
    at_a_time = max(1, _PRODUCT // matrix.size)
    return (slice(first, first + at_a_time) for first in range(0, count, at_a_time))


def _rounded(sums: Array) -> Array:
    """Whole numbers with `_BITS` bits after the point, from 0 to 255."""
    sums += 1 << (_BITS - 1)
    sums *= 1.0 / (1 << _BITS)
    return np.clip(np.floor(sums, out=sums), 0, 255, out=sums)


def _resize_width(image: Array, side: Side, resample: int) -> Array:
    """A band of lines at a time, which are laid out once for all products."""
    rows, columns, channels = image.shape
    width = side[2] - side[1]
    out = np.empty((rows, width, channels), np.uint8)
    products = list(_products(columns, side, resample))
    at_a_time = max(1, _BAND // (channels * max(columns, width)))
    for first in range(0, rows, at_a_time):
        band = slice(first, min(first + at_a_time, rows))
        lines = np.ascontiguousarray(image[band].transpose(2, 0, 1)).astype(np.float64).reshape(-1, columns)
        sums = np.empty((len(lines), width))
        for outputs, inputs, matrix in products:
            for some in _pieces(len(lines), matrix):
                sums[some, outputs] = lines[some, inputs] @ matrix
        out[band] = _rounded(sums).astype(np.uint8).reshape(channels, -1, width).transpose(1, 2, 0)
    return out


def _resize_height(image: Array, height: int, products: Sequence[tuple[slice, slice, Array]]) -> Array:
    """products: of the lines that `image` has, whichever of the whole they are."""
    rows, columns, channels = image.shape
    lines, out = image.reshape(rows, -1), np.empty((height, columns * channels), np.uint8)
    skipped = products[0][1].start
    for outputs, inputs, matrix in products:
        inputs = slice(inputs.start - skipped, inputs.stop - skipped)
        for some in _pieces(lines.shape[1], matrix):
            out[outputs, some] = _rounded(matrix.T @ lines[inputs, some].astype(np.float64))
    return out.reshape(height, columns, channels)


def resize(
    image: Array, height: int, width: int, resample: int = 3, box: tuple[int, int, int, int] | None = None
) -> Array:
    """uint8 [H, W, C] -> uint8 [height, width, C], byte for byte as Pillow's `Image.resize` in the order told above.

    Args:
        resample: Pillow's number of the filter: 1 Lanczos, 2 bilinear, 3 bicubic.
        box: first row, first column, rows and columns of the result that are wanted, and computed; None: all.
    """
    top, left, rows, columns = box or (0, 0, height, width)
    products = []
    if image.shape[0] == height:
        image = image[top : top + rows]
    else:
        products = list(_products(image.shape[0], (height, top, top + rows), resample))
        image = image[products[0][1].start : max(inputs.stop for _, inputs, _ in products)]
    if image.shape[1] == width:
        image = image[:, left : left + columns]
    else:
        image = _resize_width(image, (width, left, left + columns), resample)
    return _resize_height(image, rows, products) if products else image


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
