"""Lab 10-02: what each of two workers holds, how many blocks that leaves, and what a startup log says about it.

A *rank* is one of the workers that share every layer. Shapes are those of a checkpoint, [outputs, inputs].
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Shape = tuple[int, ...]
VOCAB_PADDING = 64
_OUTPUTS = ("q_proj", "gate_proj", "up_proj", "fc1")
_INPUTS = ("o_proj", "out_proj", "down_proj", "fc2")
_WHOLE = ("norm", "layernorm", "layer_norm", "embed_positions")


def predicted_gain() -> float:
    """Your prediction, before any code runs. Llama-3-8B in bfloat16 (16.06 GB of weights) on cards of 24 GB, of which
    0.9 may be used; activations, graphs and the like take 1.2 GiB a card.

    Returns:
        Tokens in the KV cache with two cards and tensor_parallel_size 2, over those with one card.
    """
    return 5.7


def shape_on_rank(name: str, shape: Shape, num_ranks: int, head_dim: int) -> Shape:
    """The part of one tensor of a checkpoint that a rank holds. All ranks hold equal shapes.

    It holds what vLLM's layers hold: projections are cut so that each half of a layer ends in one sum over the ranks;
    attention is cut by whole heads; of fewer KV heads than ranks everybody holds one; tokens of the vocabulary are
    counted up to the next multiple of `VOCAB_PADDING`, on one rank too; what belongs to the hidden vector as a whole,
    or is added to a finished sum, is whole on each rank.

    Args:
        name: as on disk, of Llama's or OPT's family; see `given.py`. num_ranks: at least 1.
        head_dim: numbers of one head.

    Raises:
        ValueError: "NAME: N ranks cannot share S" where S heads, numbers or tokens do not divide by N; also where
            there are fewer KV heads than ranks, but the heads do not divide the ranks. "NAME: unknown" for a name of
            another kind.
    """
    layer, _, kind = name.rpartition(".")
    layer = layer.rpartition(".")[2]
    if kind not in ("weight", "bias"):
        raise ValueError(f"{name}: unknown")
    if layer.endswith(_WHOLE):
        return shape
    if layer in ("embed_tokens", "lm_head"):
        padded = -(-shape[0] // VOCAB_PADDING) * VOCAB_PADDING
        return _share(name, padded, num_ranks), *shape[1:]
    if layer in ("k_proj", "v_proj"):
        heads = shape[0] // head_dim
        if heads < num_ranks:
            _share(name, num_ranks, heads, f"{num_ranks} ranks cannot share {heads}")
        return (1 if heads < num_ranks else _share(name, heads, num_ranks)) * head_dim, *shape[1:]
    if layer in _OUTPUTS:
        size = head_dim if layer == "q_proj" else 1
        return _share(name, shape[0] // size, num_ranks) * size, *shape[1:]
    if layer in _INPUTS:
        size = head_dim if layer in ("o_proj", "out_proj") else 1
        return shape if kind == "bias" else (shape[0], _share(name, shape[1] // size, num_ranks) * size)
    raise ValueError(f"{name}: unknown")


def _share(name: str, size: int, ranks: int, message: str = "") -> int:
    if size % ranks:
        raise ValueError(f"{name}: {message or f'{ranks} ranks cannot share {size}'}")
    return size // ranks


def weight_bytes(shapes: Mapping[str, Shape], num_ranks: int, head_dim: int, dtype_bytes: int) -> int:
    """Bytes of weights on each rank, errors as in `shape_on_rank`."""
    total = 0
    for name, shape in shapes.items():
        count = 1
        for size in shape_on_rank(name, shape, num_ranks, head_dim):
            count *= size
        total += count
    return total * dtype_bytes


def kv_block_bytes(
    num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int, num_ranks: int, block_size: int = 16
) -> int:
    """Bytes that a rank sets aside for one block: keys and values of its own heads, all layers. Ranks divide the KV
    heads, or heads the ranks; KV heads are held as in `shape_on_rank`."""
    return 2 * num_layers * max(1, num_kv_heads // num_ranks) * head_dim * dtype_bytes * block_size


def predict_kv_blocks(available_bytes: Sequence[int], block_bytes: int) -> int:
    """Blocks of the engine. A block has one number, and every rank keeps its heads' share of it at that number.

    Args:
        available_bytes: what each rank has left for the cache, in the order of the ranks; they may differ.
        block_bytes: of one block on one rank.
    """
    return min(available_bytes) // block_bytes


@dataclass
class Startup:
    """What a startup log says. world_size: 0 where it does not say. weights: worker -> GiB, as printed.
    kv_tokens: 0 where it does not say. backends: for all-reduce, in the order in which they are tried."""

    world_size: int = 0
    weights: dict[str, float] = field(default_factory=dict)
    kv_tokens: int = 0
    backends: list[str] = field(default_factory=list)


def read_log(text: str) -> Startup:
    """The four facts of a log of vLLM 0.22.1, whatever else stands in it.

    The lines (of several of a kind the last counts; a worker is what stands before " pid=")::

        (Worker pid=57) INFO … [parallel_state.py:1422] world_size=2 rank=0 local_rank=0 …
        (Worker_TP0 pid=57) INFO … [gpu_model_runner.py:5133] Model loading took 1.24 GiB memory and 0.5 seconds
        (EngineCore pid=40) INFO … [kv_cache_utils.py:1733] GPU KV cache size: 262,144 tokens
        (Worker_TP0 pid=57) INFO … Using ['CUSTOM', 'PYNCCL'] all-reduce backends (in dispatch order) for group …
    """
    found = Startup()
    for line in text.splitlines():
        if match := re.search(r"\bworld_size=(\d+) rank=", line):
            found.world_size = int(match[1])
        if match := re.search(r"\((\w+) pid=\d+\).*Model loading took ([\d.]+) GiB", line):
            found.weights[match[1]] = float(match[2])
        if match := re.search(r"GPU KV cache size: ([\d,]+) tokens", line):
            found.kv_tokens = int(match[1].replace(",", ""))
        if match := re.search(r"Using \[([^\]]*)\] all-reduce backends", line):
            found.backends = re.findall(r"'(\w+)'", match[1])
    return found


def doubts(startup: Startup, num_ranks: int, weight_gib: float, kv_tokens: int) -> list[str]:
    """What is not as it should be, in this order:

    "ranks": another number of workers than wanted, by the world size, or by those that say what they loaded. "weights":
    a rank holds clearly more than was computed. "capacity": clearly fewer tokens than were predicted. "wire": there are
    backends, several ranks, and none of the fast ones for small sums ("CUSTOM", "QUICK_REDUCE", "FLASHINFER",
    "NCCL_SYMM_MEM").

    What the log does not say is not in doubt. A prediction within a tenth is a good one; a model that was not cut, and
    a card that somebody else uses too, lie far beyond that. Where "clearly" begins, between the two, is yours to
    decide.
    """
    found = []
    if startup.world_size not in (0, num_ranks) or (startup.weights and len(startup.weights) != num_ranks):
        found.append("ranks")
    if any(gib > 1.2 * weight_gib for gib in startup.weights.values()):
        found.append("weights")
    if 0 < startup.kv_tokens < kv_tokens / 1.2:
        found.append("capacity")
    fast = {"CUSTOM", "QUICK_REDUCE", "FLASHINFER", "NCCL_SYMM_MEM"}
    if num_ranks > 1 and startup.backends and not fast & set(startup.backends):
        found.append("wire")
    return found
