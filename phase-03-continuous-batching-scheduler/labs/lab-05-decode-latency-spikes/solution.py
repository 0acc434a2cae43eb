"""Lab 03-05: what a long prompt does to somebody who is in the middle of an answer."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from mini_vllm import LLMEngine, SamplingParams


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
    engine = LLMEngine(max_num_batched_tokens=2048, long_prefill_token_threshold=threshold)
    engine.add_request("A", "hi", SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))
    victim = engine.scheduler.requests["A"]
    while victim.num_output_tokens == 0:
        engine.step()
    for i in range(num_intruders):
        params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
        engine.add_request(f"B{i}", chr(ord("b") + i) * long_prompt_len, params)
    costs = []
    while not victim.is_finished():
        before = engine.stats.num_scheduled_tokens
        engine.step()
        costs.append(engine.stats.num_scheduled_tokens - before)
    return costs, victim.output_token_ids


def percentile(costs: list[int], q: float) -> float:
    """The smallest cost that at least `q` percent of the steps do not exceed (nearest rank).

    Args:
        costs: at least one, in any order; left as they are.
        q: above 0, at most 100.

    Raises:
        ValueError: "need costs and 0 < q <= 100, got N costs, q=Q".
    """
    if not costs or not 0 < q <= 100:
        raise ValueError(f"need costs and 0 < q <= 100, got {len(costs)} costs, q={q}")
    return sorted(costs)[math.ceil(q * len(costs) / 100) - 1]


def feel(costs: list[int]) -> Feel:
    """Summarise a series of step costs from the victim's seat. Raises as `percentile`."""
    return Feel(percentile(costs, 100), statistics.fmean(costs), percentile(costs, 50), percentile(costs, 99))
