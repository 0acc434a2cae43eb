"""Lab 08-04: what drafts are worth, from a few measured numbers.

Time is counted in runs: one run of the target over one row costs 1. A draft costs `c`. Verifying k drafts is one run
over k + 1 rows; each row after the first adds `row_cost`. A draft is judged only if those before it were accepted, and
then it is accepted with probability `alpha`, independently of everything else.

`alpha` outside [0, 1] is a ValueError: "alpha must be from 0 to 1, got 1.2". k is 0 or more, costs are 0 or more.
"""

from __future__ import annotations

from collections.abc import Sequence


def expected_tokens_per_verify(alpha: float, k: int) -> float:
    """Tokens that a request gets from one run over k drafts, on average: from 1 (nothing accepted) to k + 1."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be from 0 to 1, got {alpha}")
    return float(sum(alpha**i for i in range(k + 1)))


def predicted_tokens_per_run() -> float:
    """Your prediction, made before you run anything. Half of a service's tokens are code, where a draft is accepted
    with 0.95; half are chat, where it is 0.25. Everybody gets k = 8 drafts. In the long run, counted over all tokens
    and all runs of the service, how many tokens does a run give?
    """
    return 2.26


def speedup(alpha: float, k: int, c: float, row_cost: float = 0.0) -> float:
    """Tokens a second with drafts, over tokens a second without."""
    return expected_tokens_per_verify(alpha, k) / (1 + k * (c + row_cost))


def optimal_k(alpha: float, c: float, row_cost: float = 0.0, max_k: int = 20) -> int:
    """The number of drafts, 0 to `max_k`, that is fastest; of equals the smallest. 0 where none is faster than none."""
    return max(range(max_k + 1), key=lambda k: speedup(alpha, k, c, row_cost))


def break_even_alpha(k: int, c: float, row_cost: float = 0.0) -> float:
    """The acceptance at which k >= 1 drafts neither gain nor lose, to within 1e-6.

    Raises:
        ValueError: "no acceptance pays: a cycle costs 5.8 runs and gives at most 5 tokens".
    """
    cost = 1 + k * (c + row_cost)
    if cost > k + 1:
        raise ValueError(f"no acceptance pays: a cycle costs {cost:g} runs and gives at most {k + 1} tokens")
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens_per_verify(middle, k) < cost else (low, middle)
    return high


def fit_alpha(rates: Sequence[float]) -> float:
    """The one acceptance that says the most about a log of vLLM.

    The log has a rate for each position: of all runs with drafts, the share in which that draft became a token. No real
    drafter has one acceptance for all positions, so what "fits" means is yours to decide. The tokens of a run that your
    alpha promises for these positions must be within 3 % of those that the log shows.

    Args:
        rates: one per position, each from 0 to 1 and none larger than the one before.
    """
    wanted, low, high = 1 + sum(rates), 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens_per_verify(middle, len(rates)) < wanted else (low, middle)
    return high


def speedup_of_traffic(parts: Sequence[tuple[float, float]], k: int, c: float, row_cost: float = 0.0) -> float:
    """As `speedup`, for a service whose requests differ: all its tokens over all its time, with drafts and without.

    Args:
        parts: (share, alpha). Of the service's tokens, `share` are in requests with this acceptance; shares sum to 1.
    """
    return 1 / sum(share / speedup(alpha, k, c, row_cost) for share, alpha in parts)
