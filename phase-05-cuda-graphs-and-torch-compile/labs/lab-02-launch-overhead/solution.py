"""Lab 05-02: what launches cost, when a recording pays for itself, and how much it can give at most.

The unit of the first part is one launch; the second part turns launches into microseconds. A step's CPU and GPU work
overlap, because a launch only puts work into a queue: the step lasts as long as the slower of the two lanes.
"""

from __future__ import annotations


def eager_launches(num_ops: int, num_calls: int) -> int:
    """Launches of `num_calls` calls of `num_ops` kernels, without graphs."""
    return num_ops * num_calls


def graph_launches(num_ops: int, num_calls: int, capture_cost_ops: int | None = None) -> int:
    """Launches of the same calls when the first one records and the others replay.

    Args:
        capture_cost_ops: what the recording call costs, in launches; None: as much as an eager call, `num_ops`.

    Returns:
        0 for no calls at all: nothing is recorded then.
    """
    if num_calls == 0:
        return 0
    capture = num_ops if capture_cost_ops is None else capture_cost_ops
    return capture + num_calls - 1


def crossover(num_ops: int, capture_cost_ops: int | None = None) -> int | None:
    """The first number of calls, 1 or more, for which the graph has cost strictly less than eager; None if none has.

    Costs are those of `eager_launches` and `graph_launches`, of any size: found without trying number after number.
    """
    capture = num_ops if capture_cost_ops is None else capture_cost_ops
    if num_ops <= 1:
        return 1 if capture < num_ops else None
    return max(1, (capture - 1) // (num_ops - 1) + 1)


def asymptotic_speedup(num_ops: int) -> float:
    """What eager launches over graph launches comes to, as the calls become ever more; a float."""
    return float(num_ops)


def launches_per_step(mode: str, num_layers: int, ops_per_layer: int, ops_per_split: int = 2) -> int:
    """Launches of one forward pass of a model that is nothing but equal layers.

    Args:
        mode: "NONE", "PIECEWISE" or "FULL".
        ops_per_layer: kernels of a layer, those at the split point included.
        ops_per_split: kernels at each split point, launched one by one in PIECEWISE: the KV update and attention. Each
            layer has one split point, in its middle; what stands between two of them is one recording.

    Raises:
        ValueError: another mode ("mode must be NONE, PIECEWISE or FULL, got 'MODE'").
    """
    if mode == "NONE":
        return num_layers * ops_per_layer
    if mode == "PIECEWISE":
        return num_layers + 1 + num_layers * ops_per_split
    if mode == "FULL":
        return 1
    raise ValueError(f"mode must be NONE, PIECEWISE or FULL, got {mode!r}")


def graph_objects(num_layers: int, num_piecewise_sizes: int, num_full_sizes: int) -> int:
    """Recordings that a start makes: every piece of the model for each piecewise size, and one per full size."""
    return num_piecewise_sizes * (num_layers + 1) + num_full_sizes


def step_us(num_launches: int, launch_us: float, gpu_us: float) -> float:
    """Microseconds of a step: the CPU's lane or the GPU's, whichever is longer."""
    return max(num_launches * launch_us, gpu_us)


def speedup(num_ops: int, launch_us: float, gpu_us: float, graph_launches: int = 1) -> float:
    """How many times faster a step is with `graph_launches` launches than with one per op; the GPU's work is equal."""
    return step_us(num_ops, launch_us, gpu_us) / step_us(graph_launches, launch_us, gpu_us)
