"""Lab 00-04: is a step bound by arithmetic or by memory? The roofline, in one-line functions.

The model of a step: it reads every weight once, whatever the number of tokens, and does 2 floating-point operations
(one multiply, one add) per weight and token. Reads of the KV cache enter only where an argument says so.

Your work: every function that raises NotImplementedError.
"""

from __future__ import annotations


def predicted_context() -> int:
    """Your prediction, before you compute it: Llama-3-8B in bf16 on an A100, any number of users decoding together.

    From how many tokens of context per user on does *no* batch, however large, keep the arithmetic busy? The test
    accepts what is right within 5 %.
    """
    raise NotImplementedError("a number of tokens, from your head or a napkin, before any of your code has run")


def ridge_point(peak_flops: float, mem_bw: float) -> float:
    """The intensity in FLOP per byte at which a chip's two limits meet.

    Args:
        peak_flops: FLOP per second the chip can do at best.
        mem_bw: bytes per second it can read from its memory at best.
    """
    raise NotImplementedError("FLOP per byte at which reading and computing take equally long")


def step_flops(n_params: float, num_tokens: int) -> float:
    """FLOPs of one step over `num_tokens` tokens, in the model of a step above."""
    raise NotImplementedError("the floating-point operations of one step")


def step_bytes(n_params: float, dtype_bytes: float) -> float:
    """Bytes of weights that one step reads. dtype_bytes: of one weight; 0.5 for 4-bit weights."""
    raise NotImplementedError("the bytes of weights that one step reads")


def arithmetic_intensity(n_params: float, num_tokens: int, dtype_bytes: float) -> float:
    """FLOPs of one step per byte of weights that it reads."""
    raise NotImplementedError("FLOPs per byte of weights")


def is_memory_bound(intensity: float, ridge: float) -> bool:
    """True where the chip waits for its memory. Where neither waits for the other: False."""
    raise NotImplementedError("whether the chip waits for its memory")


def attainable_flops(intensity: float, peak_flops: float, mem_bw: float) -> float:
    """FLOP per second that a step of this intensity can reach at most."""
    raise NotImplementedError("the most FLOP per second that a step of this intensity can reach")


def kv_bytes_per_step(batch: int, context_len: int, kv_per_token: int) -> int:
    """Bytes of KV cache that one decode step of `batch` sequences reads, each with `context_len` tokens behind it."""
    raise NotImplementedError("the bytes of KV cache that the whole batch reads in one step")


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
    raise NotImplementedError("tokens per second of all sequences together, if only reading takes time")


def kv_crossover_context(n_params: float, dtype_bytes: float, batch: int, kv_per_token: int) -> float:
    """Context length at which a decode step reads as many bytes of KV cache as of weights."""
    raise NotImplementedError("tokens of context at which KV cache and weights are equally many bytes")


def critical_batch(n_params: float, dtype_bytes: float, context_len: int, kv_per_token: int, ridge: float) -> float:
    """Sequences that must decode together for the arithmetic to be fully used, KV reads counted; `math.inf` if no
    number suffices.

    Args:
        context_len: tokens behind each sequence. kv_per_token: bytes of KV cache of one token.
        ridge: FLOP per byte at which the chip's two limits meet.

    Returns:
        A real number: at this batch the step's FLOPs per byte read, weights and KV, are exactly `ridge`.
    """
    raise NotImplementedError("the batch at which the arithmetic is fully used, or infinity")
