"""Lab 14-03: from the names and shapes of a checkpoint to the names and shapes of a program.

A checkpoint has a tensor per projection; the program has a parameter for each product that it makes, and some of these
are several projections, one above the other. All weights are [out, in].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

STACKED_PARAMS: list[tuple[str, str, str | int]] = [
    ("qkv_proj", "q_proj", "q"),
    ("qkv_proj", "k_proj", "k"),
    ("qkv_proj", "v_proj", "v"),
    ("gate_up_proj", "gate_proj", 0),
    ("gate_up_proj", "up_proj", 1),
]
"""(projection of the program, projection of the checkpoint, what the checkpoint's is there). The given table."""


def map_weight_name(name: str) -> tuple[str, str | int | None]:
    """The parameter that a tensor of the checkpoint belongs to, and which part of it; (name, None) for all of it.

    "model.layers.3.self_attn.q_proj.weight" -> ("model.layers.3.self_attn.qkv_proj.weight", "q"). Names that stand in
    STACKED_PARAMS' first column already, as checkpoints that were stored fused have them, stay as they are.
    """
    raise NotImplementedError("the parameter that this tensor belongs to, and which part of it")


def qkv_slices(num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str | int, slice]:
    """The rows of q, of k and of v in the fused parameter, in this order, without a gap.

    Raises:
        ValueError: "num_heads must be a multiple of num_kv_heads (3), got 8".
    """
    raise NotImplementedError("the rows of q, k and v in the fused parameter")


def load_stacked(
    param: np.ndarray, shard: np.ndarray, shard_id: str | int | None, slices: Mapping[str | int, slice] | None = None
) -> None:
    """Write a tensor of the checkpoint into its rows of a parameter, or into all of it where `shard_id` is None.

    Args:
        slices: the rows of each part. None: the parts are 0 and 1, and each is half of the rows.

    Raises:
        ValueError: "'k' has shape (128, 64), its place has (32, 64)"; nothing is written then. No array is cut or
            stretched to fit.
    """
    raise NotImplementedError("the tensor in its rows, or an error that names both shapes")


def load_checkpoint(
    params: Mapping[str, np.ndarray],
    weights: Iterable[tuple[str, np.ndarray]],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> None:
    """Fill every row of every parameter exactly once, from tensors that come in any order, or say what is wrong.

    Passed over: tensors with `rotary_emb.` in their names, which are tables that the program computes itself; and
    "lm_head.weight" where there is no such parameter: the embedding is used twice then. How you keep account is your
    decision.

    Args:
        params: name -> array to be filled. weights: (name, tensor), read once.

    Raises:
        ValueError: "tensor 'NAME' has no place: there is no parameter 'PARAMETER'"; "tensor 'NAME': 'k' has shape …,
            its place has …"; "tensor 'NAME' fills rows 128:160 of 'PARAMETER' for the second time"; and in the end,
            sorted, "never filled: PARAMETER[128:160], PARAMETER[…]" with every run of rows that nothing was written to.
    """
    raise NotImplementedError("every row filled once, or an error that says what is wrong")
