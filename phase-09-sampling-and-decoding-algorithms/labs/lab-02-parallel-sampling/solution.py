"""Lab 09-02: what n candidates of one prompt cost, whose seeds they have, and what a choice among them is worth.

A request with n > 1 becomes n requests, its *children*: the same prompt, tails of their own. What follows is checked
against runs of real vLLM, of which `real_run.py` made the records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

MAX_N = 16384
"""The greatest n that vLLM takes (`VLLM_MAX_N_SEQUENCES`)."""


class Cost(NamedTuple):
    """Tokens of prompts that pass through the model, and the most KV blocks that are held at once."""

    prefill_tokens: int
    peak_blocks: int


def cached_tokens(prompt_len: int, block_size: int = 16) -> int:
    """How many tokens of its prompt a child finds in the cache, where a sibling with the same prompt came before it.

    Only full blocks can be found; and at least one token has to be computed, since somebody has to say what comes next.
    """
    return (prompt_len - 1) // block_size * block_size


def expected_hit_rate(n: int, prompt_len: int, block_size: int = 16) -> float:
    """Tokens found over tokens looked for, as vLLM's counters will say after one request with n children."""
    return (n - 1) * cached_tokens(prompt_len, block_size) / (n * prompt_len)


def held_blocks(alive: int, prompt_len: int, num_tokens: int, shared: bool, block_size: int = 16) -> int:
    """KV blocks that are held while `alive` children live, each with `num_tokens` tokens in the cache, prompt included.

    shared: whether prefix caching is on. What a child could find in the cache is there once.
    """
    own = -(-num_tokens // block_size)
    if not shared or not alive:
        return alive * own
    common = cached_tokens(prompt_len, block_size) // block_size
    return common + alive * (own - common)


def parallel_cost(n: int, prompt_len: int, output_len: int, shared: bool, block_size: int = 16) -> Cost:
    """What one request costs, all of whose children write `output_len` tokens, and in step.

    The last token that a child writes never passes through the model, so nothing of it stands in the cache.
    """
    found = (n - 1) * cached_tokens(prompt_len, block_size) if shared else 0
    peak = held_blocks(n, prompt_len, prompt_len + output_len - 1, shared, block_size)
    return Cost(n * prompt_len - found, peak)


def predicted_new_stories() -> int:
    """Your prediction, made before you look. A user asks for four stories with seed 7. They are nice, and she asks for
    four others: the same request with seed 8. How many of the second four are not among the first?
    """
    return 1


def engine_seed(seed: int) -> int:
    """The seed to send for a user's seed (0 up to 2 ** 40): children of two different seeds never have a stream in
    common, however large the n of either request is. The same seed always gives the same, at least 0, below 2 ** 62.
    """
    return seed * MAX_N


def vote(answers: Sequence[str]) -> int | None:
    """One number for a question that was answered several times: how many blocks are needed, by most of them.

    An answer ends "... N tokens need B blocks." or "... need 1 block."; what has no such end has no vote. None where
    nobody has. Ties are yours to decide: whatever you do must not depend on anything but the answers.
    """
    found = [re.search(r"need (\d+) blocks?\.$", answer) for answer in answers]
    counts = Counter(int(each[1]) for each in found if each)
    return max(counts, key=lambda number: counts[number]) if counts else None


def predicted_margin() -> int:
    """Your prediction, made before you look. Pocket is asked a hundred questions, greedily, and sixteen times each at a
    high temperature. The vote of sixteen is right how many times more often, of a hundred, than the greedy answer?
    Below 0: less often.
    """
    return 0
