"""Lab 03-05: what a long prompt does to somebody who is in the middle of an answer."""

from __future__ import annotations

import math  # noqa: F401  (for you)
import statistics  # noqa: F401  (for you)
from dataclasses import dataclass

from mini_vllm import LLMEngine, SamplingParams  # noqa: F401  (for you)


@dataclass(frozen=True)
class Feel:
    """How a series of step costs feels: worst, mean and percentiles, in tokens. Given."""

    worst: int
    mean: float
    p50: float
    p99: float


def decode_step_costs(
    threshold: int, long_prompt_len: int = 256, max_tokens: int = 16, num_intruders: int = 1
) -> tuple[list[int], list[int]]:
    """The victim's steps while a long prompt comes in.

    Request A ("hi") runs alone until its first token. Then the intruders arrive at once: each is one letter,
    `long_prompt_len` times, and each is another letter, so that they share nothing; two output tokens each. Budget
    2048, default pool.

    Args:
        threshold: `long_prefill_token_threshold`.
        long_prompt_len: tokens of each intruder.
        max_tokens: output tokens of A; greedy, past EOS, as the others.
        num_intruders: how many arrive.

    Returns:
        For each step that gave A a token after its first: all tokens of that step, everybody's. And A's output ids.
    """
    raise NotImplementedError("the tokens of each step in which A got one after its first, and A's output ids")


def percentile(costs: list[int], q: float) -> float:
    """The smallest cost that at least `q` percent of the steps do not exceed (nearest rank).

    Args:
        costs: at least one, in any order; left as they are.
        q: above 0, at most 100.

    Raises:
        ValueError: "need costs and 0 < q <= 100, got N costs, q=Q".
    """
    raise NotImplementedError("the smallest cost that q percent of the steps do not exceed")


def feel(costs: list[int]) -> Feel:
    """Summarise a series of step costs from the victim's seat. Raises as `percentile`."""
    raise NotImplementedError("worst, mean and the two percentiles")
