"""Lab 09-02: what n candidates of one prompt cost, whose seeds they have, and what a choice among them is worth.

A request with n > 1 becomes n requests, its *children*: the same prompt, tails of their own. What follows is checked
against runs of real vLLM, of which `real_run.py` made the records.
"""

from __future__ import annotations

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
    raise NotImplementedError("how many tokens of its prompt a later child finds in the cache")


def expected_hit_rate(n: int, prompt_len: int, block_size: int = 16) -> float:
    """Tokens found over tokens looked for, as vLLM's counters will say after one request with n children."""
    raise NotImplementedError("tokens found over tokens looked for, of one request")


def held_blocks(alive: int, prompt_len: int, num_tokens: int, shared: bool, block_size: int = 16) -> int:
    """KV blocks that are held while `alive` children live, each with `num_tokens` tokens in the cache, prompt included.

    shared: whether prefix caching is on. What a child could find in the cache is there once.
    """
    raise NotImplementedError("how many KV blocks the living children hold")


def parallel_cost(n: int, prompt_len: int, output_len: int, shared: bool, block_size: int = 16) -> Cost:
    """What one request costs, all of whose children write `output_len` tokens, and in step.

    The last token that a child writes never passes through the model, so nothing of it stands in the cache.
    """
    raise NotImplementedError("the prompt tokens that are computed, and the most blocks that are held")


def predicted_new_stories() -> int:
    """Your prediction, made before you look. A user asks for four stories with seed 7. They are nice, and she asks for
    four others: the same request with seed 8. How many of the second four are not among the first?
    """
    raise NotImplementedError("your prediction: how many of the second four stories are new")


def engine_seed(seed: int) -> int:
    """The seed to send for a user's seed (0 up to 2 ** 40): children of two different seeds never have a stream in
    common, however large the n of either request is. The same seed always gives the same, at least 0, below 2 ** 62.
    """
    raise NotImplementedError("the seed to send, so that no two users' children meet")


def vote(answers: Sequence[str]) -> int | None:
    """One number for a question that was answered several times: how many blocks are needed, by most of them.

    An answer ends "... N tokens need B blocks." or "... need 1 block."; what has no such end has no vote. None where
    nobody has. Ties are yours to decide: whatever you do must not depend on anything but the answers.
    """
    raise NotImplementedError("the number that most answers give, or None")


def predicted_margin() -> int:
    """Your prediction, made before you look. Pocket is asked a hundred questions, greedily, and sixteen times each at a
    high temperature. The vote of sixteen is right how many times more often, of a hundred, than the greedy answer?
    Below 0: less often.
    """
    raise NotImplementedError("your prediction: right answers of the vote, less those of the greedy one")
