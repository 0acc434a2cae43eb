"""How sizes are shared out among ranks, and layers among stages. Upstream twin: `vllm/distributed/utils.py`."""

from __future__ import annotations

import os


def divide(size: int, ranks: int, what: str) -> int:
    """A rank's share of `size`.

    Raises:
        ValueError: the ranks do not divide it.

    Upstream: upstream/vllm/distributed/utils.py:60 — `divide`.
    """
    if size % ranks:
        raise ValueError(f"tensor_parallel_size must divide {what}, {size}, got {ranks}")
    return size // ranks


def get_pp_indices(num_hidden_layers: int, pp_rank: int, pp_size: int) -> tuple[int, int]:
    """The first layer of a stage, and the one after its last.

    Where the stages do not divide the layers, one more goes to those before the last, from the back: the last stage
    has the output embedding to compute, the first the embedding. The environment variable VLLM_PP_LAYER_PARTITION,
    "5,7,4", says how many each has.

    Raises:
        ValueError: more stages than layers; a partition that is no list of numbers above 0, one for each stage, that
            add up to the layers.

    Upstream: upstream/vllm/distributed/utils.py:95 — `get_pp_indices`, which lets a stage be empty.
    """
    given = os.environ.get("VLLM_PP_LAYER_PARTITION")
    if given is not None:
        parts = [int(part) if part.strip().isdecimal() else 0 for part in given.split(",")]
        if len(parts) != pp_size or sum(parts) != num_hidden_layers or min(parts) < 1:
            raise ValueError(
                f"VLLM_PP_LAYER_PARTITION must be {pp_size} numbers above 0 that add up to the {num_hidden_layers} "
                f"layers of the model, got {given!r}"
            )
    else:
        if pp_size > num_hidden_layers:
            raise ValueError(
                f"pipeline_parallel_size must be at most the {num_hidden_layers} layers of the model, got {pp_size}"
            )
        parts = [num_hidden_layers // pp_size] * pp_size
        for i in range(2, num_hidden_layers % pp_size + 2):
            parts[-i] += 1
    start = sum(parts[:pp_rank])
    return start, start + parts[pp_rank]
