"""Lab 00-02: from a model's shape to the number of users that fit on a card."""

from __future__ import annotations

from typing import Any


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
    return 2 * num_layers * num_kv_heads * head_dim * dtype_bytes


def kv_bytes_of_config(config: dict[str, Any], dtype_bytes: int = 2) -> int:
    """The same figure from a model's `config.json`, whose keys the README lists.

    Of two keys that could give a size, the one that names it counts. A key that is missing, or null, stands for what
    was usual when the file was written: find out what that is.

    Args:
        config: what `json.load` makes of the file; not modified.
        dtype_bytes: bytes of one number *in the cache*; the file's own dtype is that of the weights.

    Returns:
        Bytes per token.
    """
    heads = config["num_attention_heads"]
    kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
    if kv_heads is None:
        kv_heads = heads
    if head_dim is None:
        head_dim = config["hidden_size"] // heads
    return kv_bytes_per_token(config["num_hidden_layers"], kv_heads, head_dim, dtype_bytes)


def kv_bytes_per_seq(per_token: int, seq_len: int) -> int:
    """Bytes of KV cache of one sequence of `seq_len` tokens, each of `per_token` bytes."""
    return per_token * seq_len


def max_concurrent_seqs(gpu_bytes: int, weight_bytes: int, per_seq: int) -> int:
    """How many whole sequences fit beside the weights.

    Args:
        gpu_bytes: memory that the engine may use.
        weight_bytes: bytes of the model's weights.
        per_seq: KV bytes of one sequence, at least 1.

    Returns:
        Whole sequences, exact for numbers of any size; 0 when the weights leave no room. Never negative.

    Raises:
        ValueError: "per_seq must be at least 1 byte, got 0", whether or not the weights leave room.
    """
    if per_seq < 1:
        raise ValueError(f"per_seq must be at least 1 byte, got {per_seq}")
    return max(0, gpu_bytes - weight_bytes) // per_seq


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
        (num_blocks, num_tokens, concurrency): blocks in the pool; the figure of the log line
        "GPU KV cache size: N tokens"; and that of "Maximum concurrency for M tokens per request: X".
        `concurrency` is a float: how many sequences of the longest length the blocks hold, counted in blocks.
        `num_tokens` is an int, a fraction of a token cut off.
    """
    num_blocks = available_bytes // (per_token * block_size)
    blocks_per_seq = -(-max_model_len // block_size)
    concurrency = num_blocks / blocks_per_seq
    return num_blocks, int(concurrency * max_model_len), concurrency
