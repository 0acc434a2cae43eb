"""Lab 05-02: what launches cost, when a recording pays for itself, and how much it can give at most.

The unit of the first part is one launch; the second part turns launches into microseconds. A step's CPU and GPU work
overlap, because a launch only puts work into a queue: the step lasts as long as the slower of the two lanes.
"""

from __future__ import annotations


def eager_launches(num_ops: int, num_calls: int) -> int:
    """Launches of `num_calls` calls of `num_ops` kernels, without graphs."""
    raise NotImplementedError("every call launches every op")


def graph_launches(num_ops: int, num_calls: int, capture_cost_ops: int | None = None) -> int:
    """Launches of the same calls when the first one records and the others replay.

    Args:
        capture_cost_ops: what the recording call costs, in launches; None: as much as an eager call, `num_ops`.

    Returns:
        0 for no calls at all: nothing is recorded then.
    """
    raise NotImplementedError("one recording call, then one launch for each further call; nothing for no calls")


def crossover(num_ops: int, capture_cost_ops: int | None = None) -> int | None:
    """The first number of calls for which the graph has cost strictly less than eager; None if that never happens."""
    raise NotImplementedError(
        "solve num_ops * k > capture + k - 1 for the smallest whole k, and say None where no k does"
    )


def asymptotic_speedup(num_ops: int) -> float:
    """Eager launches over graph launches per call, after very many calls."""
    raise NotImplementedError("divide the launches per call of the two for ever more calls")


def launches_per_step(mode: str, num_layers: int, ops_per_layer: int, ops_per_split: int = 2) -> int:
    """Launches of one forward pass of a model that is nothing but equal layers.

    Args:
        mode: "NONE", "PIECEWISE" or "FULL".
        ops_per_layer: kernels of a layer, those at the split point included.
        ops_per_split: kernels at each split point, launched one by one in PIECEWISE: the KV update and attention.

    Raises:
        ValueError: another mode ("mode must be ...").
    """
    raise NotImplementedError(
        "count all kernels for NONE, replays and what stands between them for PIECEWISE, one for FULL"
    )


def graph_objects(num_layers: int, num_piecewise_sizes: int, num_full_sizes: int) -> int:
    """Recordings that a start makes: every piece of the model for each piecewise size, and one per full size."""
    raise NotImplementedError("count the pieces of the split model once per piecewise size and one graph per full size")


def step_us(num_launches: int, launch_us: float, gpu_us: float) -> float:
    """Microseconds of a step: the CPU's lane or the GPU's, whichever is longer."""
    raise NotImplementedError("take the longer of the CPU's launches and the GPU's work")


def speedup(num_ops: int, launch_us: float, gpu_us: float, graph_launches: int = 1) -> float:
    """How many times faster a step is with `graph_launches` launches than with one per op; the GPU's work is equal."""
    raise NotImplementedError("divide the step with one launch per op by the step with graph_launches launches")
