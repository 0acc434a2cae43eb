"""What encoders of pictures have in common: which of their rows go to the language model, and which rank takes which
picture.

Upstream twin: `vllm/model_executor/models/vision.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.utils.arrays import Array

SELECT_STRATEGIES = ("default", "full", "class")
"""Of the rows: all but the class token's, all, or the class token's alone."""


def get_num_selected_vision_tokens(num_vision_tokens: int, strategy: str) -> int:
    """Rows that a strategy leaves.

    Upstream: upstream/vllm/model_executor/models/vision.py:177 — `get_num_selected_vision_tokens`.
    """
    return {"class": 1, "default": num_vision_tokens - 1, "full": num_vision_tokens}[strategy]


def select_vision_tokens(features: Array, strategy: str) -> Array:
    """[N, T, H] -> the rows of a strategy.

    Upstream: upstream/vllm/model_executor/models/vision.py:157 — `_get_vision_feature_selector`.
    """
    return {"class": features[:, :1], "default": features[:, 1:], "full": features}[strategy]


def get_load_balance_assignment(sizes: Sequence[int], num_gpus: int = 2) -> tuple[list[int], list[int], list[int]]:
    """Items of these sizes for so many ranks: the largest first, each for the rank that has least.

    Returns:
        The items of rank 0, then those of rank 1, and so on; how many each rank has; and their sizes in all.

    Upstream: upstream/vllm/model_executor/models/vision.py:314 — `get_load_balance_assignment`.
    """
    items: list[list[int]] = [[] for _ in range(num_gpus)]
    loads = [0] * num_gpus
    for index in sorted(range(len(sizes)), key=lambda index: sizes[index], reverse=True):
        rank = loads.index(min(loads))
        items[rank].append(index)
        loads[rank] += sizes[index]
    return [index for each in items for index in each], [len(each) for each in items], loads


def run_dp_sharded_mrope_vision_model(
    vision_model: Any, pixel_values: Sequence[Array], grid_thw: Sequence[Array], context: ModelContext
) -> list[Array]:
    """Each rank encodes some of the items, whole ones, and gives all ranks the rows: the same bits everywhere.

    Args:
        vision_model: (patches [P, …], grids [N, 3]) -> [P / merged, H], with `spatial_merge_size`, `out_hidden_size`.
        pixel_values, grid_thw: patches and grid of each item.

    Returns:
        [patches / merged, H] for each item.

    Upstream: upstream/vllm/model_executor/models/vision.py:383 — `run_dp_sharded_mrope_vision_model`.
    """
    merged, width = vision_model.spatial_merge_size**2, vision_model.out_hidden_size
    sizes = [int(np.prod(grid)) for grid in grid_thw]
    items, counts, loads = get_load_balance_assignment(sizes, context.tp_size)
    of_rank = [items[stop - count : stop] for count, stop in zip(counts, accumulate(counts), strict=True)]
    mine = of_rank[context.tp_rank]
    padded = np.zeros((max(loads) // merged, width), context.dtype)  # ranks exchange arrays of one shape
    if mine:
        rows = vision_model(np.concatenate([pixel_values[i] for i in mine]), np.stack([grid_thw[i] for i in mine]))
        padded[: len(rows)] = rows
    gathered = context.all_gather(padded)
    found: dict[int, Array] = {}
    for rank, numbers in enumerate(of_rank):
        rows, at = gathered[:, rank * width : (rank + 1) * width], 0
        for index in numbers:
            found[index] = rows[at : at + sizes[index] // merged]
            at += sizes[index] // merged
    return [found[index] for index in range(len(sizes))]
