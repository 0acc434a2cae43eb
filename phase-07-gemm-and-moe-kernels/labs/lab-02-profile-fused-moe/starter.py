"""Lab 07-02: predict where the time of an MoE step goes, then sort a real profile by the same groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GROUPS = ("experts", "align", "glue", "router", "attention", "dense", "norm", "head", "other")
"""What a step's time is sorted into. `glue`: activation and moe_sum. `dense`: all other matrix products."""


@dataclass(frozen=True)
class Device:
    """Ceilings: FLOP/s, bytes/s, and seconds that a kernel costs however little it does. Given."""

    flops: float
    bytes_per_s: float
    launch_s: float


@dataclass(frozen=True)
class Model:
    """An MoE transformer. `inter` is the width of one expert; weights and activations have `dtype_bytes`. Given."""

    num_layers: int
    hidden: int
    inter: int
    num_experts: int
    top_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    dtype_bytes: int = 2


@dataclass(frozen=True)
class Step:
    """`num_seqs` sequences, each with `query` new tokens and `context` tokens when the step ends. Given."""

    num_seqs: int
    query: int
    context: int

    @property
    def num_tokens(self) -> int:
        return self.num_seqs * self.query


@dataclass(frozen=True)
class Op:
    """Work of one group in one layer (or once a step, for the head). Given."""

    group: str
    flops: float
    bytes: float
    launches: int


def experts_touched(num_experts: int, top_k: int, num_tokens: int) -> float:
    """Expected number of experts that get at least one token, each token choosing k distinct ones at random.

    A token leaves a given expert out with probability 1 - k / E.
    """
    raise NotImplementedError("the expected number of experts with at least one token")


def moe_ops(model: Model, step: Step) -> list[Op]:
    """The MoE layer's operations, in order: router, align, experts, glue.

    Per layer, with T tokens, k experts a token, D hidden, I width of an expert, b bytes a number:

    router   2 T D E FLOP; reads the gate (D E) and the tokens (T D). Two launches: product, top-k.
    align    4 T k ids of four bytes: count and sort each read T k of them and write as many. Two launches.
    experts  2 T k * 3 D I FLOP; reads three matrices of each touched expert, and moves
             T k (D + 2 I) numbers in the first product, T k (I + D) in the second. Two launches.
    glue     SwiGLU moves T k * 3 I numbers, the sum over k moves T k D + T D. Two launches.

    FLOP of the glue and of the align are left at 0: bytes decide.
    """
    raise NotImplementedError("the four operations of a layer's experts, with FLOP, bytes and launches")


def other_ops(model: Model, step: Step) -> list[Op]:
    """Attention, its projections, and the norms of a layer. Given."""
    T, D, b = step.num_tokens, model.hidden, model.dtype_bytes
    q_dim, kv_dim = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    weights = D * (q_dim + 2 * kv_dim) + q_dim * D
    attended = step.query * step.context - step.query * (step.query - 1) // 2
    kv_bytes = step.num_seqs * step.context * 2 * kv_dim * b
    return [
        Op("dense", 2 * T * weights, (weights + T * (2 * D + 2 * q_dim + 2 * kv_dim)) * b, 2),
        Op("attention", 4 * step.num_seqs * attended * q_dim, kv_bytes + 2 * T * q_dim * b, 2),
        Op("norm", 0, 8 * T * D * b, 2),
    ]


def head_op(model: Model, step: Step) -> Op:
    """The LM head, once a step, for the last token of each sequence. Given."""
    weights = model.vocab * model.hidden
    return Op("head", 2 * step.num_seqs * weights, (weights + step.num_seqs * model.vocab) * model.dtype_bytes, 1)


def op_time(op: Op, device: Device) -> float:
    """Seconds: the slower of arithmetic and memory, plus what its launches cost."""
    raise NotImplementedError("the seconds of one operation on this device")


def predict(model: Model, step: Step, device: Device) -> dict[str, float]:
    """Seconds of each group over a whole step: the layers' operations times the layers, and the head once."""
    raise NotImplementedError("the seconds of each group over a whole step")


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Each group's part of the sum, the largest first."""
    raise NotImplementedError("each group's part of the whole, the largest first")


def group_of(name: str) -> str:
    """The group of a kernel, by words in its name; "other" where none fits.

    The order matters: a FlashAttention kernel has "cutlass" in its name, and `moe_align_...` has "moe".
    """
    raise NotImplementedError("the group that a kernel of this name belongs to")


def measured(rows: Sequence[tuple[str, float, int]]) -> dict[str, float]:
    """Time of each group in a profile.

    Args:
        rows: (name, self time, calls). Self time: without what the operation called, so that nothing counts twice.

    Returns:
        Group to time, in the rows' unit; a group without rows is left out.
    """
    raise NotImplementedError("the time of each group in a profile")
