"""Prompts with pictures in them, and our engine's answer to the same question. Nothing to edit here."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mini_vllm.core.encoder_cache_manager import EncoderCacheManager
from mini_vllm.core.sched.encoder_inputs import EncoderInputs
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

A, B = PlaceholderRange(50, 100), PlaceholderRange(170, 100)
TWO = [A, B]
"""50 tokens of text, A, 20 of text, B, 30 of text: 300 tokens."""
TEN = [PlaceholderRange(600 * number + 24, 576) for number in range(10)]
"""Ten times 24 tokens of text and a picture of LLaVA-1.5: 6,000 tokens."""


def album(seed: int, least: int = 1, most: int = 8) -> tuple[int, list[PlaceholderRange]]:
    """A prompt by chance: how many tokens it has, and where its pictures are."""
    rng = random.Random(seed)
    ranges, at = [], 0
    for _ in range(rng.randint(least, most)):
        at += rng.choice((0, 1, rng.randint(0, 40), rng.randint(0, 400)))
        ranges.append(PlaceholderRange(at, rng.choice((1, 4, 64, 144, rng.randint(1, 300)))))
        at = ranges[-1].end
    return at + rng.randint(1, 60), ranges


def request_of(num_tokens: int, ranges: Sequence[PlaceholderRange]) -> Request:
    """The same prompt for our engine; each picture is another one."""
    features = [MultiModalFeatureSpec(None, "image", f"picture {i}", where) for i, where in enumerate(ranges)]
    return Request("r", [0] * num_tokens, SamplingParams(), mm_features=features)


def engine_plan(
    num_computed: int, num_new: int, ranges: Sequence[PlaceholderRange], budget: int, cached: set[int], cache_free: int
) -> tuple[int, list[int]]:
    """Tokens and pictures of one step, by `EncoderStep.clamp` of our engine."""
    request = request_of(ranges[-1].end + 1, ranges)
    manager = EncoderCacheManager(cache_free + sum(ranges[index].length for index in cached))
    for index in cached:
        manager.allocate(request, index)
    step = EncoderInputs(manager, budget).begin_step()
    num_new = step.clamp(request, num_computed, num_new)
    return num_new, step.inputs


def engine_trace(
    num_tokens: int, ranges: Sequence[PlaceholderRange], max_chunk: int, budget: int, cache_size: int
) -> list[tuple[int, int, list[int]]]:
    """Start, tokens and pictures of each step, by our engine. It keeps what nobody needs until the room is wanted."""
    request, room = request_of(num_tokens, ranges), EncoderInputs(EncoderCacheManager(cache_size), budget)
    steps: list[tuple[int, int, list[int]]] = []
    while (start := request.num_computed_tokens) < num_tokens:
        step = room.begin_step()
        num_new = step.clamp(request, start, min(max_chunk, num_tokens - start))
        assert num_new > 0, "the engine would wait for ever"
        step.commit(request)
        steps.append((start, num_new, step.scheduled.get("r", [])))
        request.num_computed_tokens += num_new
        room.free_passed(request)
    return steps
