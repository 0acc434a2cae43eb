"""Lab 03-03: what the prefix cache of real vLLM saved, from its own figures, and what it should have saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Savings:
    """What one run looked up, found and computed. Tokens, except where said otherwise."""

    queried: int
    hit: int
    computed_prompt: int
    token_hit_rate: float
    request_hit_rate: float


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of tokens that two sequences have in common from their beginning."""
    shared = 0
    for x, y in zip(a, b):  # noqa: B905  (they may differ in length)
        if x != y:
            break
        shared += 1
    return shared


def expected_hits(prompt_len: int, shared: int, block_size: int) -> int:
    """Tokens of a prompt that a prefix cache can serve.

    Args:
        prompt_len: tokens of the prompt, at least 1.
        shared: leading tokens that somebody has computed before, at most `prompt_len`.
        block_size: tokens per block.

    Returns:
        A whole number of blocks. At least one token is left to compute: its logits are needed.

    Upstream: upstream/vllm/v1/core/kv_cache_manager.py:194 — `get_computed_blocks`.
    """
    return min(shared, prompt_len - 1) // block_size * block_size


def read_run(result: dict[str, Any]) -> Savings:
    """Summarise a captured run from the requests it lists.

    Args:
        result: as `real_run.py` writes it; `result["requests"][i]` has `prompt_token_ids` and `num_cached_tokens`. At
            least one request. Left as it is.

    Returns:
        `queried`, `hit` and `computed_prompt` count the prompt tokens of all requests; `token_hit_rate` is the share of
        them that was found; `request_hit_rate` is the share of requests that hit at all.
    """
    lengths = [len(request["prompt_token_ids"]) for request in result["requests"]]
    hits = [request["num_cached_tokens"] for request in result["requests"]]
    return Savings(
        queried=sum(lengths),
        hit=sum(hits),
        computed_prompt=sum(lengths) - sum(hits),
        token_hit_rate=sum(hits) / sum(lengths),
        request_hit_rate=sum(hit > 0 for hit in hits) / len(hits),
    )


def predict(prompts: list[list[int]], block_size: int) -> list[int]:
    """Cached tokens of each prompt when all arrive together at an empty cache, in this order.

    A block can be found as soon as a step has given it its slots, so that a prompt hits what any earlier one has in
    common with it, also one of the same step. The pool is large enough that nothing is evicted. `prompts` stays as it
    is.
    """
    hits = []
    for i, prompt in enumerate(prompts):
        shared = max((common_prefix(prompt, earlier) for earlier in prompts[:i]), default=0)
        hits.append(expected_hits(len(prompt), shared, block_size))
    return hits


def kv_saved_bytes(num_requests: int, hit_tokens: int, bytes_per_token: int) -> int:
    """KV memory that sharing saves: all but the first request point at blocks that exist. 0 without requests."""
    return max(num_requests - 1, 0) * hit_tokens * bytes_per_token
