"""Lab 18-01: the knobs of the scheduler meet a workload, first in steps, then under a limit in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Arrival = tuple[int, int, int]
"""(tick in which the request comes, prompt tokens, output tokens)"""


@dataclass(frozen=True)
class Metrics:
    """What one run of a workload looked like. Given.

    Attributes:
        ttft_steps: per arrival, in the order of the arrivals, the ticks from its arrival to its first token.
        max_step_tokens: tokens of the largest step, all requests together.
        total_steps: ticks until everything was answered.
    """

    ttft_steps: list[int]
    max_step_tokens: int
    total_steps: int

    @property
    def worst_ttft(self) -> int:
        """Ticks to the first token of the one who waited longest."""
        return max(self.ttft_steps)


def simulate(arrivals: Sequence[Arrival], **engine_kwargs: Any) -> Metrics:
    """Serve a workload with arrivals on `LLMEngine`, one `step()` a tick, greedily and past EOS.

    A request is in the engine before the step of the tick in which it comes. No two prompts have anything in common
    that a prefix cache could find, whatever `engine_kwargs` say; how you see to that is yours to decide.

    Args:
        arrivals: in any order; left as they are.
        engine_kwargs: passed to `LLMEngine` as they are; what it raises comes out.

    Returns:
        `ttft_steps` is 0 for a request whose first token comes in the tick of its arrival. `total_steps` counts every
        tick from 0 on, those in which nothing was to be done as well.

    Raises:
        ValueError: "need at least one arrival".
    """
    raise NotImplementedError("the metrics of the workload, served on the engine tick by tick")


def predicted_extra_steps() -> tuple[int, int]:
    """Your prediction, made before you run anything. Both workloads are served with a budget of 2,048 tokens, once
    with `long_prefill_token_threshold=0` and once with 32. How many ticks more does the second take?

    Returns:
        (for one answer of 24 tokens in whose second tick two prompts of 128 come, (0, 8, 24), (1, 128, 2),
        (1, 128, 2); for a prompt of 256 tokens alone, (0, 256, 2)).
    """
    raise NotImplementedError("your prediction: the ticks that chunks of 32 cost each of the two workloads")


def grid_search(
    arrivals: Sequence[Arrival], budgets: Sequence[int], thresholds: Sequence[int], spike_slo: int, **fixed: Any
) -> tuple[dict[str, int], Metrics]:
    """The best pair of knobs of all that keep every step within the limit.

    Args:
        budgets, thresholds: values of `max_num_batched_tokens` and `long_prefill_token_threshold`; every pair counts.
        spike_slo: tokens that no step may exceed. A constraint: who breaks it is out, however fast.
        fixed: further arguments of `simulate`, the same for each pair.

    Returns:
        The pair under the names of the two arguments, and its metrics. Best is: fewest `total_steps`; of these the
        lowest `worst_ttft`; of these the one that comes first, budgets in their order and for each the thresholds in
        theirs.

    Raises:
        ValueError: "no setting keeps every step within S tokens; the smallest largest step is N", where none does.
    """
    raise NotImplementedError("the best pair of knobs among those that keep the limit, and its metrics")


def step_cost(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The line `fixed + per_token · tokens` that describes how long the steps of an engine take.

    Measured steps are not clean: a step takes longer now and then by a tenth, more for larger ones, and up to one in
    eight was interrupted and took many times as long. The line describes those that were not. How you find it is yours
    to decide.

    Args:
        steps: (tokens, milliseconds) of each, in the order in which they ran; left as they are.

    Returns:
        (fixed milliseconds of a step, milliseconds per token).

    Raises:
        ValueError: "need steps of at least two sizes, got N": N sizes are too few for a line.
    """
    raise NotImplementedError("fixed milliseconds of a step, and milliseconds per token")


def largest_step(slo_ms: float, fixed_ms: float, ms_per_token: float) -> int:
    """The most tokens that a step may have if it is to take no longer than `slo_ms`.

    Raises:
        ValueError: "no step takes S ms or less: one token takes T ms", T to one decimal.
    """
    raise NotImplementedError("the most tokens of a step that keeps the limit in milliseconds")
