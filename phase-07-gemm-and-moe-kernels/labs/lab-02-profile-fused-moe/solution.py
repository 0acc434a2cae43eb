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
    """Expected number of experts that get at least one token, as a float; no tokens touch none.

    Each token chooses k distinct ones, all choices equally likely, and not knowing of the other tokens.
    """
    return num_experts * (1 - (1 - top_k / num_experts) ** num_tokens)


def moe_ops(model: Model, step: Step) -> list[Op]:
    """The MoE layer's operations, in order: router, align, experts, glue.

    Of one layer, two launches each. A multiplication and its addition are 2 FLOP; only `router` and `experts` have any.
    Bytes are what is read and what is written. A weight that is needed is read once, however many tokens share it.
    An assignment is a token with one of its k experts.

    router   all tokens through the gate, one row of it an expert. The logits stay on the chip: no bytes.
    align    count, then sort; each reads an id of four bytes for every assignment, and writes as many.
    experts  two products on a row for each assignment: to the gate and up of its expert, then from `inter` back down.
             Both read their rows and write their results. Weights: of the experts that are touched, no others.
    glue     SwiGLU, from gate and up to one row of `inter`; then the sum, from a token's k rows to its one.
    """
    T, D, inter, b = step.num_tokens, model.hidden, model.inter, model.dtype_bytes
    rows = T * model.top_k
    weights = experts_touched(model.num_experts, model.top_k, T) * 3 * D * inter
    gate = D * model.num_experts
    return [
        Op("router", 2 * T * gate, (gate + T * D) * b, 2),
        Op("align", 0, 4 * rows * 4, 2),
        Op("experts", 2 * rows * 3 * D * inter, (weights + rows * (D + 2 * inter) + rows * (inter + D)) * b, 2),
        Op("glue", 0, (rows * 3 * inter + rows * D + T * D) * b, 2),
    ]


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
    return max(op.flops / device.flops, op.bytes / device.bytes_per_s) + op.launches * device.launch_s


def predict(model: Model, step: Step, device: Device) -> dict[str, float]:
    """Seconds of each group over a whole step: the layers' operations times the layers, and the head once."""
    seconds: dict[str, float] = {}
    for op in [*moe_ops(model, step), *other_ops(model, step)]:
        seconds[op.group] = seconds.get(op.group, 0.0) + model.num_layers * op_time(op, device)
    head = head_op(model, step)
    seconds[head.group] = op_time(head, device)
    return seconds


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Each group's part of the sum, the largest first."""
    total = sum(seconds.values())
    return {group: s / total for group, s in sorted(seconds.items(), key=lambda item: -item[1])}


_WORDS = (
    ("align", ("moe_align_block_size", "count_and_sort_expert_tokens")),
    ("router", ("topkgating", "topk_softmax", "moesoftmax", "moetopk", "grouped_topk", "router_gemm")),
    ("glue", ("moe_sum", "act_and_mul", "silu")),
    ("experts", ("fused_moe", "grouped_gemm", "moe_wna16", "moe_gemm")),
    ("attention", ("flash", "attention", "attn", "fmha", "reshape_and_cache", "rotary")),
    ("norm", ("rms_norm", "rmsnorm", "layernorm")),
    ("dense", ("gemm", "nvjet", "cutlass", "cublas", "splitk", "onednn_mm", "aten::mm", "aten::addmm")),
)


def group_of(name: str) -> str:
    """The group of a kernel, by its name, in capitals or not; "other" where none fits.

    Words overlap: FlashAttention with "cutlass" in its name is attention, `moe_align_...` is no expert.
    """
    lower = name.lower()
    return next((group for group, words in _WORDS if any(word in lower for word in words)), "other")


def measured(rows: Sequence[tuple[str, float, int]]) -> dict[str, float]:
    """Time of each group in a profile.

    Args:
        rows: (name, self time, calls). Self time: without what the operation called, so that nothing counts twice.

    Returns:
        Group to time, in the rows' unit; a group without rows is left out.
    """
    found: dict[str, float] = {}
    for name, time, _ in rows:
        group = group_of(name)
        found[group] = found.get(group, 0.0) + time
    return found
