"""Lab 00-04: is a step bound by arithmetic or by memory? The roofline, in one-line functions.

The model of a step: it reads every weight once, whatever the number of tokens, and does 2 floating-point operations
(one multiply, one add) per weight and token. Reads of the KV cache enter only where an argument says so.
"""

from __future__ import annotations

import math


def predicted_context() -> int:
    """Your prediction, before you compute it: Llama-3-8B in bf16 on an A100, any number of users decoding together.

    From how many tokens of context per user on does *no* batch, however large, keep the arithmetic busy? The test
    accepts what is right within 5 %.
    """
    return 782


def ridge_point(peak_flops: float, mem_bw: float) -> float:
    """The intensity in FLOP per byte at which a chip's two limits meet.

    Args:
        peak_flops: FLOP per second the chip can do at best.
        mem_bw: bytes per second it can read from its memory at best.
    """
    return peak_flops / mem_bw


def step_flops(n_params: float, num_tokens: int) -> float:
    """FLOPs of one step over `num_tokens` tokens, in the model of a step above."""
    return 2 * n_params * num_tokens


def step_bytes(n_params: float, dtype_bytes: float) -> float:
    """Bytes of weights that one step reads. dtype_bytes: of one weight; 0.5 for 4-bit weights."""
    return n_params * dtype_bytes


def arithmetic_intensity(n_params: float, num_tokens: int, dtype_bytes: float) -> float:
    """FLOPs of one step per byte of weights that it reads."""
    return 2 * num_tokens / dtype_bytes  # as many weights compute as are read: their number cancels


def is_memory_bound(intensity: float, ridge: float) -> bool:
    """True where the chip waits for its memory. Where neither waits for the other: False."""
    return intensity < ridge


def attainable_flops(intensity: float, peak_flops: float, mem_bw: float) -> float:
    """FLOP per second that a step of this intensity can reach at most."""
    return min(peak_flops, intensity * mem_bw)


def kv_bytes_per_step(batch: int, context_len: int, kv_per_token: int) -> int:
    """Bytes of KV cache that one decode step of `batch` sequences reads, each with `context_len` tokens behind it."""
    return batch * context_len * kv_per_token


def decode_tokens_per_second(
    n_params: float, dtype_bytes: float, mem_bw: float, batch: int = 1, kv_bytes: float = 0
) -> float:
    """Upper bound on decode speed set by memory alone, all sequences together.

    One step yields `batch` tokens. Activations, launches and the compute roof are ignored, so the bound holds for
    batches below the ridge.

    Args:
        n_params: number of weights.
        dtype_bytes: bytes of one weight; 0.5 for 4-bit weights.
        mem_bw: bytes per second.
        batch: sequences that decode together.
        kv_bytes: bytes of KV cache read in the step, beside the weights (see `kv_bytes_per_step`).
    """
    return batch * mem_bw / (step_bytes(n_params, dtype_bytes) + kv_bytes)


def kv_crossover_context(n_params: float, dtype_bytes: float, batch: int, kv_per_token: int) -> float:
    """Context length at which a decode step reads as many bytes of KV cache as of weights."""
    return step_bytes(n_params, dtype_bytes) / (batch * kv_per_token)


def critical_batch(n_params: float, dtype_bytes: float, context_len: int, kv_per_token: int, ridge: float) -> float:
    """Sequences that must decode together for the arithmetic to be fully used, KV reads counted; `math.inf` if no
    number suffices.

    Args:
        context_len: tokens behind each sequence. kv_per_token: bytes of KV cache of one token.
        ridge: FLOP per byte at which the chip's two limits meet.

    Returns:
        A real number: at this batch the step's FLOPs per byte read, weights and KV, are exactly `ridge`.
    """
    left = 2 * n_params - ridge * context_len * kv_per_token  # what a sequence adds, beyond what its reads cost
    return ridge * step_bytes(n_params, dtype_bytes) / left if left > 0 else math.inf
