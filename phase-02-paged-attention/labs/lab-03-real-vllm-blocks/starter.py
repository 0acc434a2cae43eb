"""Lab 02-03: predict real vLLM's KV blocks on paper: how many there are, what is shared, and who gets which.

All memory is in bytes; GiB is 2**30. A block is counted over all layers, as the startup log does.

Your work: every function that raises NotImplementedError. Then predict the captured runs, and run your own.
"""

from __future__ import annotations


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Bytes that one token leaves in the cache: a K and a V vector per layer and KV head."""
    raise NotImplementedError("the bytes that one token leaves in the cache, over all layers")


def num_gpu_blocks(available_bytes: int, block_size: int, bytes_per_token: int) -> int:
    """Whole blocks that fit into the memory left for the cache; the null block is one of them."""
    raise NotImplementedError("the whole blocks that fit into this memory")


def usable_tokens(num_blocks: int, block_size: int) -> int:
    """Tokens that requests can really hold at once. The log's "KV cache size" is one block more: it counts block 0."""
    raise NotImplementedError("the tokens that requests can hold at once")


def max_concurrency(num_blocks: int, block_size: int, max_model_len: int) -> float:
    """The log's "Maximum concurrency": how many requests of `max_model_len` tokens all blocks would hold, not rounded.

    A request takes whole blocks. As in the log, the null block is not left out.
    """
    raise NotImplementedError("how many requests of the greatest length the blocks would hold")


def fit_memory(util_a: float, blocks_a: int, util_b: float, blocks_b: int, block_bytes: int) -> tuple[float, float]:
    """What a card has, and what a deployment spends on other things than blocks, from two starts.

    The starts differ in gpu_memory_utilization only, and either may be the larger. Of the share of the card that a
    start may use, everything but the cache takes the same number of bytes each time; the blocks take the rest.

    Returns:
        (total, fixed): the card's memory, and what everything but the cache takes of it, in bytes.
    """
    raise NotImplementedError("the card's memory, and what everything but the cache takes of it, in bytes")


def cached_tokens(prompt_len: int, shared_len: int, block_size: int) -> int:
    """Tokens of a prompt that prefix caching saves when its first `shared_len` tokens are in the cache.

    A cache is asked for whole blocks, and at least one token of the prompt is always computed.
    """
    raise NotImplementedError("the tokens of the prompt that need not be computed")


def expected_hit_rate(num_requests: int, prompt_len: int, block_size: int) -> float:
    """Hit tokens over queried tokens for `num_requests` identical prompts (at least one); the cache starts empty."""
    raise NotImplementedError("the share of all prompt tokens that are found in the cache")


def blocks_of_request(prompt_len: int, num_output_tokens: int, block_size: int) -> int:
    """Blocks that a request holds at its end. The last output token is never computed, so it needs no slot."""
    raise NotImplementedError("the blocks that the request holds when its last token has been sampled")


def serve_one(free: list[int], hits: list[int], num_new: int) -> tuple[list[int], list[int]]:
    """One request from admission to its end, alone in the engine, as block ids.

    The hits leave the free queue from wherever they stand; new blocks come from its front; at the end the table goes
    back, last block first.

    Args:
        free: the free queue, first to be reused in front; not modified.
        hits: blocks of the prompt that are found again, in the order of the prompt; all of them are free. Not modified.
        num_new: blocks that the request needs besides.

    Returns:
        (table, free): its block table at the end, and the free queue when it has gone.

    Raises:
        ValueError: "N blocks wanted, F are free".
    """
    raise NotImplementedError("the request's block table at its end, and the free queue when it has gone")
