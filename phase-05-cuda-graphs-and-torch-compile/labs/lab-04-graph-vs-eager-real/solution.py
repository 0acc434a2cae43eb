"""Lab 05-04: read a start's log, compare arms of a measurement, and say which claims about graphs it bears out.

Times are milliseconds of a decode step, as {batch size: ms}; an arm is one way to start the engine.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 2**30


@dataclass(frozen=True)
class StartLog:
    """What a start says about compilation and graphs. Given.

    Attributes:
        bars: concrete mode -> how many descriptors its progress bar counted to, in the order of the bars.
        capture_s: seconds of capture, None without capture.
        pool_gib: memory that the capture took, None without.
        estimated_gib: what was set aside for it before the KV cache was sized; None where nothing was.
        compile_s: seconds of torch.compile, None where nothing was compiled.
        from_cache: the compiled code was loaded, not made.
        init_s: seconds to profile, size the cache, warm up and capture.
    """

    bars: dict[str, int] = field(default_factory=dict)
    capture_s: float | None = None
    pool_gib: float | None = None
    estimated_gib: float | None = None
    compile_s: float | None = None
    from_cache: bool = False
    init_s: float | None = None


def parse_start_log(text: str) -> StartLog:
    """Read the lines that matter; both model runners' bars: "(decode, FULL)" of the first, "(FULL)" of the second.

    The lines are "Capturing CUDA graphs (LABEL): ... DONE/TOTAL [", "Graph capturing finished in S secs, took G GiB",
    "Estimated CUDA graph memory: G GiB total", "torch.compile took S s in total", "Directly load the compiled graph",
    "init engine (...) took S s", in any order and among many others; what no line says stays None. A bar that was drawn
    many times counts once, with its total.
    """
    bars = re.findall(r"Capturing CUDA graphs \((?:[^()]*, )?(\w+)\):.*?\d+/(\d+) \[", text)
    captured = re.search(r"Graph capturing finished in (\d+) secs, took ([\d.]+) GiB", text)
    return StartLog(
        bars={mode: int(total) for mode, total in bars},
        capture_s=float(captured[1]) if captured else None,
        pool_gib=float(captured[2]) if captured else None,
        estimated_gib=number(r"Estimated CUDA graph memory: ([\d.]+) GiB total", text),
        compile_s=number(r"torch\.compile took ([\d.]+) s in total", text),
        from_cache="Directly load the compiled graph" in text,
        init_s=number(r"init engine \(.*?\) took ([\d.]+) s", text),
    )


def number(pattern: str, text: str) -> float | None:
    """The first group of the first match as a number, or None. Given."""
    found = re.search(pattern, text)
    return float(found[1]) if found else None


def mode_of(log: StartLog) -> str:
    """The mode that a start ended up with, judged by its bars alone: none, one, or both.

    A FULL bar alone leaves it open whether mixed steps have graphs too; call it "FULL".
    """
    return {(): "NONE", ("PIECEWISE",): "PIECEWISE", ("FULL",): "FULL"}.get(tuple(log.bars), "FULL_AND_PIECEWISE")


def graph_objects(log: StartLog, num_layers: int) -> int:
    """How many CUDA graphs the start made: a model cut at each layer's attention has num_layers + 1 pieces."""
    return log.bars.get("PIECEWISE", 0) * (num_layers + 1) + log.bars.get("FULL", 0)


def blocks_for_graphs(log: StartLog, block_bytes: int) -> int:
    """KV blocks that the estimate costs, rounded to the nearest whole block; 0 where nothing was set aside."""
    return round((log.estimated_gib or 0.0) * GIB / block_bytes)


def speedup_table(slow: Mapping[int, float], fast: Mapping[int, float]) -> dict[int, float]:
    """How many times shorter the fast arm's step is, for each batch size that both arms have, ascending."""
    return {batch: slow[batch] / fast[batch] for batch in sorted(slow.keys() & fast.keys())}


def check_shape(ratios: Mapping[int, float], tolerance: float = 0.05) -> list[str]:
    """The claims that a speedup table breaks: "largest first", "never rises", "never below one"; empty if none.

    The gain is largest at the smallest batch; from one batch to the next larger it does not rise; it is never a loss.
    Each comparison may miss by the share `tolerance`.
    """
    values = [ratios[batch] for batch in sorted(ratios)]
    broken = []
    if values[0] * (1 + tolerance) < max(values):
        broken.append("largest first")
    if any(after > before * (1 + tolerance) for before, after in itertools.pairwise(values)):
        broken.append("never rises")
    if min(values) < 1 - tolerance:
        broken.append("never below one")
    return broken


def effects(ms: Mapping[str, float]) -> dict[str, float]:
    """Factor of each layer at one batch size, from the arms "eager", "compiled", "piecewise" and "default".

    Returns:
        "compile": eager to compiled; "pieces": compiled to piecewise; "whole": piecewise to default; "all": eager to
        default. The first three multiply to the last.
    """
    return {
        "compile": ms["eager"] / ms["compiled"],
        "pieces": ms["compiled"] / ms["piecewise"],
        "whole": ms["piecewise"] / ms["default"],
        "all": ms["eager"] / ms["default"],
    }


def is_launch_bound(ms: Mapping[int, float], growth: float = 1.5) -> bool:
    """Does the step's time hardly depend on its size? True if the largest batch takes at most `growth` times the
    smallest one's time. The GPU's work grows with the batch; the CPU's launches do not. (Neither does reading the
    weights: the answer means something only where the step is far longer than that.)"""
    return ms[max(ms)] <= growth * ms[min(ms)]


def break_even_steps(extra_start_s: float, slow_ms: float, fast_ms: float) -> int | None:
    """Steps after which the faster arm has paid back its longer start; None where it is not faster."""
    if fast_ms >= slow_ms:
        return None
    return math.ceil(extra_start_s * 1e3 / (slow_ms - fast_ms))


def us_per_launch(ms_per_step: float, launching_calls: float) -> float:
    """Microseconds of the step per call that launches something: the price of a launch where the CPU sets the pace."""
    return ms_per_step * 1e3 / launching_calls


def gpu_share(ms_per_step: float, gpu_busy_ms: float) -> float:
    """The share of the step in which the GPU has something to do, 0 to 1."""
    return gpu_busy_ms / ms_per_step


def interaction(eager: float, compiled: float, graph: float, both: float) -> float:
    """What compiling and recording give together, over the product of what each gives alone.

    1 means that they are independent, below 1 that they save the same thing twice.
    """
    return (eager / both) / (eager / compiled * eager / graph)
