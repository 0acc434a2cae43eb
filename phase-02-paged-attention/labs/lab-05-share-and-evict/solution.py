"""Lab 02-05: the life of a cached block, driven by hand through the engine's KV cache manager.

No scheduler and no model: three functions that act as a scheduler would, and four that look. In every function the
manager `kv` is a `mini_vllm.KVCacheManager`. It answers with one list for each KV cache group; here there is one group,
so that `kv.get_blocks(request_id).blocks[0]` is the block table of a request.
"""

from __future__ import annotations

from mini_vllm import KVCacheManager, Request, RequestStatus, SamplingParams, get_request_block_hasher


def predicted() -> tuple[list[int], int, list[int]]:
    """Your prediction, with a pencil, before any of your code runs. Ten blocks (block 0 is the null block) of 4 tokens:

        A arrives with 10 tokens.        B arrives with the first 9 of A's and 4 of its own.     A ends.
        C arrives with 8 other tokens.   B ends.   D arrives with the same 10 tokens as A.   (Now!)   D ends.

    Each prompt is computed in one step when it arrives, and nobody decodes.

    Returns:
        D's block table · at the moment "Now!", how many tokens a prompt may have at most that begins with B's 13 tokens
        and is admitted · the free queue at the end, first to be reused in front.
    """
    return [1, 2, 8], 24, [9, 3, 5, 4, 8, 2, 1]


def make_request(kv: KVCacheManager, request_id: str, token_ids: list[int]) -> Request:
    """A request whose full blocks are hashed as they fill up (provided)."""
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    return Request(request_id, list(token_ids), params, block_hasher=get_request_block_hasher(kv.block_size))


def prefill(kv: KVCacheManager, request_id: str, token_ids: list[int]) -> tuple[Request, int] | None:
    """Admit a request and compute its whole prompt in one step, as a scheduler and a model would.

    What the cache holds of the prompt is neither allocated nor computed again. Afterwards the request is running, it
    has slots for its whole prompt, and all of it counts as computed.

    Returns:
        (request, cached): how many of its tokens were hits. None where it does not fit; then tables, users and queue
        are as before.
    """
    request = make_request(kv, request_id, token_ids)
    hits, cached = kv.get_computed_blocks(request)
    if kv.allocate_slots(request, request.num_tokens - cached, cached, hits) is None:
        return None
    request.num_computed_tokens = request.num_tokens
    request.status = RequestStatus.RUNNING
    return request, cached


def decode(kv: KVCacheManager, request: Request, token_id: int) -> bool:
    """Append one sampled token and compute it, where the cache has a slot for it.

    Returns:
        Whether it was computed. Where it was not, the token stays appended, and nothing else has changed.
    """
    request.append_output_token_ids(token_id)
    if kv.allocate_slots(request, 1) is None:
        return False
    request.num_computed_tokens += 1
    return True


def finish(kv: KVCacheManager, request: Request) -> None:
    """End the request by its length and give its blocks back."""
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    kv.free(request)


def ref_counts(kv: KVCacheManager, request: Request) -> list[int]:
    """Users of each block of the request's table, in the order of the table."""
    return [block.ref_cnt for block in kv.get_blocks(request.request_id).blocks[0]]


def free_order(kv: KVCacheManager) -> list[int]:
    """Block ids of the free queue, the one that will be reused first in front."""
    return [block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()]


def block_states(kv: KVCacheManager) -> dict[int, str]:
    """The state of every block but the null block, by id.

    "used": one user · "shared": more than one · "cached": no user, and its content can still be found · "empty": no
    user and no content.
    """
    states = {}
    for block in kv.block_pool.blocks[1:]:
        if block.ref_cnt:
            states[block.block_id] = "shared" if block.ref_cnt > 1 else "used"
        else:
            states[block.block_id] = "cached" if block.block_hash is not None else "empty"
    return states


def cache_hit_rate(kv: KVCacheManager) -> float:
    """Hit tokens over queried tokens since the manager was made; 0.0 before the first query.

    The manager keeps both numbers in `kv.prefix_cache_stats`.
    """
    stats = kv.prefix_cache_stats
    return stats.hits / stats.queries if stats.queries else 0.0
