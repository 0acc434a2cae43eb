"""Lab 07-04: how evenly a router spreads its tokens, what unevenness costs, and what helps."""

from __future__ import annotations

import numpy as np


def expert_loads(topk_ids: np.ndarray, num_experts: int) -> np.ndarray:
    """Assignments of each expert, [E]; an id that stands twice in a row counts twice. topk_ids: [T, k]."""
    raise NotImplementedError("count how often each id stands in topk_ids, also those that never do")


def imbalance(loads: np.ndarray) -> float:
    """Largest load over mean load; 1.0 is even. Without any work: 0.0."""
    raise NotImplementedError("divide the largest load by the mean, and answer 0.0 where there is no work")


def ep_step_time(loads: np.ndarray, num_devices: int, placement: np.ndarray | None = None) -> float:
    """What a step of an expert-parallel layer takes: the load of the busiest device, since all wait for it.

    Args:
        loads: [E].
        num_devices: D.
        placement: device of each expert, [E]; without it expert e is on device e % D.
    """
    raise NotImplementedError("add up the loads of each device, and return the largest sum")


def efficiency(loads: np.ndarray, num_devices: int, placement: np.ndarray | None = None) -> float:
    """Share of the devices' time that is work: all work over D times the step time. Without any work: 0.0."""
    raise NotImplementedError("divide all work by the number of devices times the step time")


def dropped_tokens(loads: np.ndarray, capacity_factor: float) -> int:
    """Assignments beyond the experts' capacity, which training with a capacity factor throws away.

    The capacity of every expert is its fair share of all assignments times the factor, rounded up.
    """
    raise NotImplementedError("round the capacity up, and add up what each expert has beyond it")


def balanced_packing(loads: np.ndarray, num_devices: int) -> np.ndarray:
    """A placement: the heaviest first, each to the lightest device that has a free place.

    Every device has E / D places. Of equal loads the smaller id comes first, of equal devices the smaller number.

    Returns:
        Device of each expert, [E].

    Raises:
        ValueError: D does not divide E: the devices "cannot hold equal numbers" of experts.

    Upstream: upstream/vllm/distributed/eplb/policy/default.py:23 — `DefaultEplbPolicy.balanced_packing`.
    """
    raise NotImplementedError(
        "go through the experts from the heaviest on, and give each to the lightest device that has a free place"
    )


def replicate_experts(loads: np.ndarray, num_physical: int) -> tuple[np.ndarray, np.ndarray]:
    """Copies for the busy: each extra place goes to the expert with the largest load per copy, of equals the first.

    Args:
        loads: [E].
        num_physical: places in all, at least E.

    Returns:
        phy2log [num_physical]: which expert is in each place; the first E places hold experts 0 to E - 1.
        copies [E]: copies of each expert.

    Raises:
        ValueError: fewer places than experts: num_physical must be "at least 4", if there are 4 experts.

    Upstream: upstream/vllm/distributed/eplb/policy/default.py:76 — `DefaultEplbPolicy.replicate_experts`.
    """
    raise NotImplementedError("give each extra place to the expert whose load per copy is largest")
