"""Lab 18-01: the knobs of the scheduler meet a workload, first in steps, then under a limit in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm import LLMEngine, SamplingParams

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
    if not arrivals:
        raise ValueError("need at least one arrival")
    engine = LLMEngine(**engine_kwargs)
    params = [SamplingParams(max_tokens=each[2], temperature=0.0, ignore_eos=True) for each in arrivals]
    coming = sorted(range(len(arrivals)), key=lambda i: arrivals[i][0])
    ttft: dict[int, int] = {}
    tick = largest = before = 0
    while coming or engine.has_unfinished_requests():
        while coming and arrivals[coming[0]][0] <= tick:
            i = coming.pop(0)
            engine.add_request(str(i), _prompt(i, arrivals[i][1]), params[i])
        for output in engine.step():
            i = int(output.request_id)
            if output.outputs[0].token_ids:
                ttft.setdefault(i, tick - arrivals[i][0])
        scheduled = engine.stats.num_scheduled_tokens
        largest, before = max(largest, scheduled - before), scheduled
        tick += 1
    return Metrics([ttft[i] for i in range(len(arrivals))], largest, tick)


def _prompt(number: int, length: int) -> Any:
    """A prompt with a salt of its own, which goes into the hash of its first block, and with it into every other."""
    return {"prompt_token_ids": [0] * length, "cache_salt": str(number)}


def predicted_extra_steps() -> tuple[int, int]:
    """Your prediction, made before you run anything. Both workloads are served with a budget of 2,048 tokens, once
    with `long_prefill_token_threshold=0` and once with 32. How many ticks more does the second take?

    Returns:
        (for one answer of 24 tokens in whose second tick two prompts of 128 come, (0, 8, 24), (1, 128, 2),
        (1, 128, 2); for a prompt of 256 tokens alone, (0, 256, 2)).
    """
    return 0, 7


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
    found = []
    for budget in budgets:
        for threshold in thresholds:
            pair = {"max_num_batched_tokens": budget, "long_prefill_token_threshold": threshold}
            found.append((pair, simulate(arrivals, **pair, **fixed)))
    allowed = [each for each in found if each[1].max_step_tokens <= spike_slo]
    if not allowed:
        least = min(metrics.max_step_tokens for _, metrics in found)
        raise ValueError(f"no setting keeps every step within {spike_slo} tokens; the smallest largest step is {least}")
    return min(allowed, key=lambda each: (each[1].total_steps, each[1].worst_ttft))


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
    tokens, ms = (np.array([each[column] for each in steps], dtype=float) for column in (0, 1))
    if len(sizes := set(tokens.tolist())) < 2:
        raise ValueError(f"need steps of at least two sizes, got {len(sizes)}")
    design, line = np.stack([np.ones_like(tokens), tokens], axis=1), np.array([np.median(ms), 0.0])
    for _ in range(60):  # least relative deviations: who lies far off pulls no harder than who lies near
        expected = np.maximum(design @ line, 1e-9)
        weight = 1 / np.sqrt(np.maximum(np.abs(ms - expected) / expected, 1e-3)) / expected
        line = np.linalg.lstsq(design * weight[:, None], ms * weight, rcond=None)[0]
    return float(line[0]), float(line[1])


def largest_step(slo_ms: float, fixed_ms: float, ms_per_token: float) -> int:
    """The most tokens that a step may have if it is to take no longer than `slo_ms`.

    Raises:
        ValueError: "no step takes S ms or less: one token takes T ms", T to one decimal.
    """
    tokens = math.floor((slo_ms - fixed_ms) / ms_per_token)
    if tokens < 1:
        one = fixed_ms + ms_per_token
        raise ValueError(f"no step takes {slo_ms} ms or less: one token takes {one:.1f} ms")
    return tokens
