"""Lab 02-05: the life of a cached block, driven by hand through the engine's KV cache manager.

No scheduler and no model: three functions that act as a scheduler would, and four that look. In every function the
manager `kv` is a `mini_vllm.KVCacheManager`. It answers with one list for each KV cache group; here there is one group,
so that `kv.get_blocks(request_id).blocks[0]` is the block table of a request.

Your work: every function that raises NotImplementedError. What is marked (provided) stays as it is.
"""

from __future__ import annotations

from mini_vllm import KVCacheManager, Request, SamplingParams, get_request_block_hasher


def make_request(kv: KVCacheManager, request_id: str, token_ids: list[int]) -> Request:
    """A request whose full blocks are hashed as they fill up (provided)."""
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    return Request(request_id, list(token_ids), params, block_hasher=get_request_block_hasher(kv.block_size))


def prefill(kv: KVCacheManager, request_id: str, token_ids: list[int]) -> tuple[Request, int] | None:
    """Admit a request and compute its whole prompt in one step.

    Five steps: make the request; ask the manager for its computed blocks; allocate slots for the rest, handing the hits
    over; pretend that the model ran, so that every token of the prompt is computed; set it running.

    Returns:
        (request, cached): how many of its tokens were hits. None where it does not fit; then nothing has changed.
    """
    raise NotImplementedError(
        "make the request, get its computed blocks, allocate slots for the rest with the hits, then count all "
        "its tokens as computed and set it RUNNING; None where allocate_slots gives None"
    )


def decode(kv: KVCacheManager, request: Request, token_id: int) -> bool:
    """Append one sampled token and compute it.

    Returns:
        False where no slot can be had; the token stays appended, and it is not computed.
    """
    raise NotImplementedError(
        "append the token, allocate one slot, and where that worked count one more token as computed"
    )


def finish(kv: KVCacheManager, request: Request) -> None:
    """End the request by its length and give its blocks back."""
    raise NotImplementedError("set the status to FINISHED_LENGTH_CAPPED and free the request's blocks")


def ref_counts(kv: KVCacheManager, request: Request) -> list[int]:
    """Users of each block of the request's table, in the order of the table."""
    raise NotImplementedError("the ref_cnt of each block of the request's table")


def free_order(kv: KVCacheManager) -> list[int]:
    """Block ids of the free queue, the one that will be reused first in front."""
    raise NotImplementedError("the block ids of the pool's free queue from first to last")


def block_states(kv: KVCacheManager) -> dict[int, str]:
    """The state of every block but the null block, by id.

    "used": one user · "shared": more than one · "cached": no user, and its content can still be found · "empty": no
    user and no content.
    """
    raise NotImplementedError("name each block but block 0 by its ref_cnt and by whether it has a hash")


def cache_hit_rate(kv: KVCacheManager) -> float:
    """Hit tokens over queried tokens since the manager was made; 0.0 before the first query."""
    raise NotImplementedError(
        "divide the hits of kv.prefix_cache_stats by its queries, and give 0.0 where there are none"
    )
