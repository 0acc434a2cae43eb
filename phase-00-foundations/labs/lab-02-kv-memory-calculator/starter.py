"""Lab 00-02: from a model's shape to the number of users that fit on a card.

Your work: every function that raises NotImplementedError.
"""

from __future__ import annotations


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int = 2) -> int:
    """Bytes of KV cache that one token occupies in the whole model.

    Every layer stores one K and one V vector per KV head.

    Args:
        num_layers: layers that have attention.
        num_kv_heads: heads of K and V (not of Q: with GQA there are fewer).
        head_dim: numbers in one head's vector.
        dtype_bytes: bytes of one number: 2 for bf16 and fp16, 1 for fp8, 4 for fp32.

    Returns:
        Bytes per token. Llama-3-8B in bf16: 131,072.
    """
    raise NotImplementedError("multiply: K and V, layers, KV heads, numbers per head, bytes per number")


def kv_bytes_per_seq(per_token: int, seq_len: int) -> int:
    """Bytes of KV cache of one sequence of `seq_len` tokens, each of `per_token` bytes."""
    raise NotImplementedError("multiply the bytes of one token by the number of tokens")


def max_concurrent_seqs(gpu_bytes: int, weight_bytes: int, per_seq: int) -> int:
    """How many whole sequences fit beside the weights.

    Args:
        gpu_bytes: memory that the engine may use.
        weight_bytes: bytes of the model's weights.
        per_seq: KV bytes of one sequence, at least 1.

    Returns:
        Whole sequences, rounded down; 0 when the weights leave no room. Never negative.

    Raises:
        ValueError: `per_seq` is below 1.
    """
    raise NotImplementedError(
        "refuse per_seq below 1, then divide what the weights leave by per_seq, rounding down and never below 0"
    )


def engine_capacity(
    available_bytes: int, per_token: int, max_model_len: int, block_size: int = 16
) -> tuple[int, int, float]:
    """The capacity that vLLM works out at startup, where memory is handed out in blocks.

    A block holds `block_size` tokens of all layers. Only whole blocks exist, and a sequence takes whole blocks.

    Args:
        available_bytes: memory for the KV cache.
        per_token: KV bytes per token (see `kv_bytes_per_token`).
        max_model_len: length of the longest sequence that is allowed.
        block_size: tokens in a block.

    Returns:
        (num_blocks, num_tokens, concurrency): blocks in the pool; the tokens figure of the log line
        "GPU KV cache size: N tokens"; and the figure of "Maximum concurrency for M tokens per request: X".
        Concurrency is num_blocks over the blocks of one longest sequence, as a float;
        num_tokens is int(concurrency * max_model_len).
    """
    raise NotImplementedError(
        "count whole blocks in the memory, divide by the blocks of one longest sequence (rounded up), and "
        "convert back to tokens"
    )
