"""Lab 13-03: a chunk of the prompt may be cut anywhere, a picture may not. What that does to a step's plan.

Positions and sizes are in tokens. A picture of `length` placeholders has as many embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mini_vllm import PlaceholderRange

ENCODE_WORK = 3
"""What it costs to encode one embedding, where a token of the language model costs 1."""


class ChunkPlan(NamedTuple):
    """What one step does for one request.

    `num_new_tokens`: tokens that are computed. `encode`: numbers of the pictures that are encoded, in order.
    `budget_left`, `cache_left`: embeddings that the step may still encode, and that still fit into the cache.
    """

    num_new_tokens: int
    encode: list[int]
    budget_left: int
    cache_left: int


class Step(NamedTuple):
    """One step of a trace: where it starts, what it computes and encodes, and how many embeddings the cache holds for
    the request while it runs."""

    start: int
    num_new_tokens: int
    encode: list[int]
    held: int


def predicted_steps() -> tuple[int, int, int]:
    """Your prediction, before any code runs. Ten times 24 tokens of text and a picture of 576: 6,000 tokens. A step
    computes at most 1,024 of them, so 6 steps would do.

    Returns:
        How many steps it takes where a step may encode 1,024 embeddings and the cache has room for 1,024; where both
        are 1,152, two whole pictures; and where a step may encode 1,152 and the cache has room for 1,728.
    """
    return 10, 7, 6


def plan_chunk(
    num_computed: int,
    num_new: int,
    ranges: Sequence[PlaceholderRange],
    encoder_budget: int,
    cached: set[int],
    cache_free: int,
) -> ChunkPlan:
    """As many of the next tokens as this step can compute, and the pictures that it has to encode for them.

    True of the result: a token of a picture is computed only where the picture is cached, or encoded in this step. A
    picture is encoded as a whole and only where at least one of its tokens is computed now. What is encoded fits into
    budget and cache together, and more tokens would not be possible. Nothing that is given is changed.

    Args:
        num_computed: tokens whose keys and values are there. Usually what lies before was encoded once; after a hit of
            the prefix cache it was not, and the first token may lie in the middle of a picture that nobody encoded.
        num_new: tokens that the step would compute if there were no pictures.
        ranges: of the pictures, in order; they do not overlap.
        encoder_budget: embeddings that this step may encode.
        cached: numbers of the pictures whose embeddings are in the cache.
        cache_free: embeddings for which the cache has room now.
    """
    encode: list[int] = []
    for index, where in enumerate(ranges):
        if where.offset >= num_computed + num_new:
            break  # they are in order: all later ones begin behind the chunk, too
        if where.end <= num_computed or index in cached:
            continue
        if where.length > min(encoder_budget, cache_free):
            num_new = max(0, where.offset - num_computed)
            break  # the chunk ends before this one now
        encode.append(index)
        encoder_budget -= where.length
        cache_free -= where.length
    return ChunkPlan(num_new, encode, encoder_budget, cache_free)


def trace(
    num_tokens: int, ranges: Sequence[PlaceholderRange], max_chunk: int, encoder_budget: int, cache_size: int
) -> list[Step]:
    """All steps of one prompt that is alone on the engine, from its first token to its last.

    An embedding stays in the cache as long as a token that needs it is still to be computed, and not a step longer.

    Args:
        num_tokens: of the prompt, placeholders included. ranges: of the pictures, in order, all within the prompt.
        max_chunk: tokens that a step computes at most; 1 or more. encoder_budget: embeddings that a step may encode.
        cache_size: embeddings that the cache holds.

    Raises:
        ValueError: before the first step, where a picture can never be encoded: "picture 1 has 100 embeddings, a step
            may encode 99 and the cache holds 150: it would wait for ever".
    """
    for index, where in enumerate(ranges):
        if where.length > min(encoder_budget, cache_size):
            raise ValueError(
                f"picture {index} has {where.length} embeddings, a step may encode {encoder_budget} and the cache "
                f"holds {cache_size}: it would wait for ever"
            )
    steps: list[Step] = []
    cached: set[int] = set()
    start = 0
    while start < num_tokens:
        held = sum(ranges[index].length for index in cached)
        plan = plan_chunk(start, min(max_chunk, num_tokens - start), ranges, encoder_budget, cached, cache_size - held)
        cached.update(plan.encode)
        steps.append(Step(start, plan.num_new_tokens, plan.encode, cache_size - plan.cache_left))
        start += plan.num_new_tokens
        cached = {index for index in cached if ranges[index].end > start}
    return steps


def step_work(step: Step, ranges: Sequence[PlaceholderRange]) -> int:
    """Work of a step: 1 for each token, `ENCODE_WORK` for each embedding that is encoded. Somebody else's decode waits
    that long."""
    return step.num_new_tokens + ENCODE_WORK * sum(ranges[index].length for index in step.encode)


def choose(
    num_tokens: int, ranges: Sequence[PlaceholderRange], most_work: int, most_cache: int
) -> tuple[int, int, int]:
    """Settings for a prompt beside which others decode. How you find them is yours to decide.

    Args:
        ranges: may be empty.
        most_work: no step may have more work. most_cache: the cache may hold so many embeddings at most. Both allow the
            largest picture and 600 tokens beside it.

    Returns:
        `max_chunk`, `encoder_budget`, `cache_size` for `trace`. No step has more work than allowed, and the steps are
        at most 1.15 times as many as with the best that a search has found.
    """
    largest = max((where.length for where in ranges), default=0)
    best: tuple[int, int, int] | None = None
    for budget in (largest * thirds // 3 for thirds in range(3, 7)):
        for chunk in range(most_work - ENCODE_WORK * largest, 0, -32):
            steps = trace(num_tokens, ranges, chunk, budget, most_cache)
            if best and len(steps) >= best[0]:
                continue
            if max(step_work(step, ranges) for step in steps) <= most_work:
                best = len(steps), chunk, budget
    assert best is not None, "one picture a step, and the tokens that fit beside it, keep within the limits"
    return best[1], best[2], most_cache
