"""Lab 02-03: predict real vLLM's KV blocks on paper: how many there are, what is shared, and who gets which.

All memory is in bytes; GiB is 2**30. A block is counted over all layers, as the startup log does.

Your work: every function that raises NotImplementedError. Then predict the captured runs, and run your own.
"""

from __future__ import annotations


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Bytes that one token leaves in the cache: a K and a V vector per layer and KV head."""
    raise NotImplementedError("two vectors per layer and KV head, times their size in bytes")


def num_gpu_blocks(available_bytes: int, block_size: int, bytes_per_token: int) -> int:
    """Whole blocks that fit into the memory left for the cache; the null block is one of them."""
    raise NotImplementedError("divide the available bytes by the bytes of a block, rounded down")


def usable_tokens(num_blocks: int, block_size: int) -> int:
    """Tokens that requests can really hold at once. The log's "KV cache size" is one block more: it counts block 0."""
    raise NotImplementedError("leave out the null block")


def max_concurrency(num_blocks: int, block_size: int, max_model_len: int) -> float:
    """The log's "Maximum concurrency": all blocks over the blocks of one longest request."""
    raise NotImplementedError(
        "divide the blocks by the blocks of one request of max_model_len tokens, which are rounded up"
    )


def fit_memory(util_a: float, blocks_a: int, util_b: float, blocks_b: int, block_bytes: int) -> tuple[float, float]:
    """Solve blocks * block_bytes = total * util - fixed from two runs that differ in gpu_memory_utilization only.

    Returns:
        (total, fixed): the card's memory, and what everything but the cache takes of it, in bytes.
    """
    raise NotImplementedError(
        "the slope between the two runs gives the total, and either run then gives the fixed part"
    )


def cached_tokens(prompt_len: int, shared_len: int, block_size: int) -> int:
    """Tokens of a prompt that prefix caching saves when its first `shared_len` tokens are in the cache.

    Whole blocks only, and at least one token of the prompt is always computed.
    """
    raise NotImplementedError(
        "take what is shared, at most all but one token of the prompt, and round down to whole blocks"
    )


def expected_hit_rate(num_requests: int, prompt_len: int, block_size: int) -> float:
    """Hit tokens over queried tokens for `num_requests` identical prompts and a cache that starts empty."""
    raise NotImplementedError("every request but the first hits its cached_tokens; divide by all tokens asked for")


def blocks_of_request(prompt_len: int, num_output_tokens: int, block_size: int) -> int:
    """Blocks that a request holds at its end. The last output token is never computed, so it needs no slot."""
    raise NotImplementedError(
        "round up the tokens that are computed, which is all but the last output token, to blocks"
    )


def serve_one(free: list[int], hits: list[int], num_new: int) -> tuple[list[int], list[int]]:
    """One request from admission to its end, alone in the engine, as block ids.

    The hits leave the free queue from wherever they stand; new blocks come from its front; at the end the table goes
    back, last block first.

    Args:
        free: the free queue, first to be reused in front; not modified.
        hits: blocks of the prompt that are found again, in the order of the prompt.
        num_new: blocks that the request needs besides.

    Returns:
        (table, free): its block table at the end, and the free queue when it has gone.

    Raises:
        ValueError: "N blocks wanted, F are free".
    """
    raise NotImplementedError(
        "take the hits out of the queue, new blocks from its front, and append the whole table reversed"
    )
