"""Lab 07-04: how evenly a router spreads its tokens, what unevenness costs, and what helps."""

from __future__ import annotations

import numpy as np


def expert_loads(topk_ids: np.ndarray, num_experts: int) -> np.ndarray:
    """Assignments of each expert, [E]; an id that stands twice in a row counts twice. topk_ids: [T, k]."""
    raise NotImplementedError("the assignments of each expert, also of those that have none")


def imbalance(loads: np.ndarray) -> float:
    """Largest load over mean load; 1.0 is even. Without any work: 0.0."""
    raise NotImplementedError("how many times its fair share the busiest expert has")


def ep_step_time(loads: np.ndarray, num_devices: int, placement: np.ndarray | None = None) -> float:
    """What a step of an expert-parallel layer takes: the load of the busiest device, since all wait for it.

    Args:
        loads: [E].
        num_devices: D.
        placement: device of each expert, [E]; without it expert e is on device e % D.
    """
    raise NotImplementedError("how long a step takes, when all wait for the busiest device")


def efficiency(loads: np.ndarray, num_devices: int, placement: np.ndarray | None = None) -> float:
    """Share of the devices' time that is work: all work over D times the step time. Without any work: 0.0."""
    raise NotImplementedError("the share of the devices' time that is work")


def dropped_tokens(loads: np.ndarray, capacity_factor: float) -> int:
    """Assignments beyond the experts' capacity, which training with a capacity factor throws away.

    The capacity of every expert is its fair share of all assignments times the factor, rounded up.
    """
    raise NotImplementedError("the assignments that find no place")


def balanced_packing(loads: np.ndarray, num_devices: int) -> np.ndarray:
    """A placement with E / D experts on each device, made to keep the busiest device's load small.

    Returns:
        Device of each expert, [E]. The busiest has no more work than where `mini_vllm.balanced_packing` packs.

    Raises:
        ValueError: D does not divide E: the devices "cannot hold equal numbers" of experts.

    Upstream: upstream/vllm/distributed/eplb/policy/default.py:23 — `DefaultEplbPolicy.balanced_packing`.
    """
    raise NotImplementedError("a device for each expert, equally many on each")


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
    raise NotImplementedError("which expert is in each place, and how many copies each has")
