"""Lab 10-04: a model in stages, what stands idle, and who goes into the next micro-batch.

A pipeline has p stages; each holds some of the layers. A batch is cut into m micro-batches, and a stage works on one
of them for one tick, then hands it on.
"""

from __future__ import annotations

import numpy as np


def predicted_speedup() -> float:
    """Your prediction, before any code runs. Four stages decode for 64 users who came together, so that all of them
    are in one micro-batch and three of four stages stand idle. Now they are dealt into four micro-batches of 16.
    A micro-batch of n rows needs 1 ms + n * 0.05 ms on a stage: 1 ms to read the weights, the rest for its rows.

    Returns:
        Tokens a second afterwards over tokens a second before.
    """
    return 4.2 / 1.8


def pipeline_total_ticks(p: int, m: int) -> int:
    """Ticks from the first work on the first stage to the end of the last work on the last one.

    Raises:
        ValueError: "p must be at least 1, got 0"; the same for m.
    """
    _check(p, m)
    return p + m - 1


def bubble_fraction(p: int, m: int) -> float:
    """Share of all stages' ticks in which nothing is done, 0 to 1. Errors as `pipeline_total_ticks`."""
    _check(p, m)
    return (p - 1) / (p + m - 1)


def simulate_schedule(p: int, m: int) -> np.ndarray:
    """Who works on what: int array [p, ticks], the number of the micro-batch, 0 to m - 1, or -1 where a stage idles.

    Each stage takes micro-batches in order, as soon as it can, and a micro-batch is on one stage at a time. Errors as
    `pipeline_total_ticks`.
    """
    grid = np.full((p, pipeline_total_ticks(p, m)), -1)
    for stage in range(p):
        grid[stage, stage : stage + m] = np.arange(m)
    return grid


def min_microbatches_for_bubble(p: int, budget: float) -> int:
    """The smallest m with `bubble_fraction(p, m) <= budget`, however small the budget is.

    Raises:
        ValueError: p as `pipeline_total_ticks`; "budget must be above 0 and at most 1, got 0" (one stage has no bubble,
            but a budget of 0 is refused all the same).
    """
    _check(p, 1)
    if not 0 < budget <= 1:
        raise ValueError(f"budget must be above 0 and at most 1, got {budget}")
    most = 1
    while bubble_fraction(p, most) > budget:
        most *= 2
    least = most // 2  # too few, or 0
    while most - least > 1:
        middle = (least + most) // 2
        if bubble_fraction(p, middle) > budget:
            least = middle
        else:
            most = middle
    return most


def rows_to_take(num_ready: int, num_running: int, in_flight: int, stages: int) -> int:
    """How many of the ready requests go into the next micro-batch of a pipeline that decodes.

    A request that is on the way comes back, ready for its next token, when it has passed the last stage. The pinned
    release takes everybody who is ready. Here nobody may wait for nothing, and no stage either: see the README for
    the ends that are measured. How is yours to decide.

    Args:
        num_ready: at least 1. num_running: all unfinished requests, ready or on the way.
        in_flight: micro-batches on the way, fewer than `stages`.

    Returns:
        0 to num_ready; at least 1 where nothing is in flight.
    """
    return min(num_ready, -(-num_running // stages))


def _check(p: int, m: int) -> None:
    for name, value in (("p", p), ("m", m)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
