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
    parts = name.split(".")
    for fused, single, shard_id in STACKED_PARAMS:
        if single in parts:
            return ".".join(fused if part == single else part for part in parts), shard_id
    return name, None


def qkv_slices(num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str | int, slice]:
    """The rows of q, of k and of v in the fused parameter, in this order, without a gap.

    Raises:
        ValueError: "num_heads must be a multiple of num_kv_heads (3), got 8".
    """
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"num_heads must be a multiple of num_kv_heads ({num_kv_heads}), got {num_heads}")
    q, kv = num_heads * head_dim, num_kv_heads * head_dim
    return {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)}


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
    if shard_id is None:
        rows = slice(None)
    elif slices is None:
        half = len(param) // 2
        rows = slice(half * int(shard_id), half * (int(shard_id) + 1))
    else:
        rows = slices[shard_id]
    if param[rows].shape != shard.shape:
        what = "the tensor" if shard_id is None else repr(shard_id)
        raise ValueError(f"{what} has shape {shard.shape}, its place has {param[rows].shape}")
    param[rows] = shard


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
    slices = qkv_slices(num_heads, num_kv_heads, head_dim)
    filled = {name: np.zeros(len(param), bool) for name, param in params.items()}
    for name, tensor in weights:
        target, shard_id = map_weight_name(name)
        if "rotary_emb." in name or (name == "lm_head.weight" and name not in params):
            continue
        if target not in params:
            raise ValueError(f"tensor {name!r} has no place: there is no parameter {target!r}")
        rows = slices if isinstance(shard_id, str) else None
        account = filled[target]
        size = len(account) // 2
        first, last = 0, len(account)
        if rows is not None:
            first, last = rows[shard_id].start, rows[shard_id].stop
        elif shard_id is not None:
            first, last = size * shard_id, size * (shard_id + 1)
        if account[first:last].any():
            raise ValueError(f"tensor {name!r} fills rows {first}:{last} of {target!r} for the second time")
        try:
            load_stacked(params[target], tensor, shard_id, rows)
        except ValueError as error:
            raise ValueError(f"tensor {name!r}: {error}") from None
        account[first:last] = True
    missing = [f"{name}[{first}:{last}]" for name in sorted(filled) for first, last in _holes(filled[name])]
    if missing:
        raise ValueError("never filled: " + ", ".join(missing))


def _holes(account: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[True], account, [True]]).astype(np.int8)))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]
