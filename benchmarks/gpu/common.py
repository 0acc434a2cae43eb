"""What the GPU measurements share: races on the clock, errors against float64, ceilings, provenance.

A *race* measures several ways to do the same work. Each way is captured into a CUDA graph, once per set of inputs; the
sets together are larger than the L2 cache, so nothing is found there from the call before. The graphs are then replayed
in turn, round after round: all ways see the same clocks and the same heat. A time is the median over rounds, divided by
the number of sets. Launch costs of Python are not in it; the gaps between kernels on the GPU are.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

Call = Callable[[], Any]
L2_SETS_BYTES = 512 << 20  # inputs of a race, all sets together: eight times the L2 of an H200


def num_sets(bytes_per_set: int) -> int:
    """How many sets of inputs a race needs: at least two, at most 24."""
    return max(2, min(24, -(-L2_SETS_BYTES // bytes_per_set)))


def capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """One graph of all calls, after a warm-up outside of it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def race(ways: dict[str, Sequence[Call]], rounds: int = 15) -> dict[str, float]:
    """Median microseconds of one call, by way. A way that cannot be captured is left out, and a line says why."""
    graphs = {}
    for name, calls in ways.items():
        try:
            graphs[name] = (capture(calls), len(calls))
        except Exception as error:  # a configuration that does not fit, a function this version lacks
            print(f"  left out: {name}: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
            torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(rounds + 2):
        for name, (graph, count) in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(end) * 1000 / count)
    return {name: statistics.median(values) for name, values in times.items()}


def compile_all(calls: Sequence[Call]) -> None:
    """Run each call once, several threads at a time: Triton and ptxas compile in parallel. Failures show up later."""

    def attempt(call: Call) -> None:
        torch.cuda.set_device(0)
        try:
            call()
        except Exception as error:
            print(f"  does not compile: {str(error).splitlines()[0][:120]}", flush=True)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(attempt, calls))
    torch.cuda.synchronize()


def tune(
    kernel: Callable[..., Any], sets: Sequence[tuple], configs: Sequence[dict], rounds: int = 5
) -> tuple[dict, list[dict]]:
    """The fastest configuration of a kernel on these inputs, and the time of every one, fastest first."""
    compile_all([lambda config=config: kernel(*sets[0], **config) for config in configs])  # type: ignore[misc]
    ways = {str(i): [lambda s=s, c=c: kernel(*s, **c) for s in sets] for i, c in enumerate(configs)}  # type: ignore[misc]
    times = race(ways, rounds)  # type: ignore[arg-type]
    table = [{"us": round(us, 2), **configs[int(i)]} for i, us in sorted(times.items(), key=lambda item: item[1])]
    best = {key: value for key, value in table[0].items() if key != "us"}
    return best, table


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """||out - expected|| / ||expected||, `expected` in float64."""
    return float(f"{((out.double() - expected).norm() / expected.norm()).item():.2e}")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normal numbers on the GPU. Never zeros: a matrix product of zeros draws less power and runs faster."""
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=gen, device="cuda", dtype=torch.float32).to(dtype)


def copy_bandwidth() -> float:
    """GB/s of a 4 GiB copy, read and written. Launched, not captured: in a graph the same copy ran at 2,772 GB/s."""
    source, target = (torch.empty(4 << 30, dtype=torch.uint8, device="cuda").random_(0, 255) for _ in range(2))
    times = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return 2 * source.numel() / statistics.median(times[2:]) / 1e6


def ceilings() -> dict[str, float]:
    """What this machine gives today: GB/s of a large copy, TFLOP/s of cuBLAS on random bf16."""
    result = {"copy_gb_per_s": round(copy_bandwidth())}
    tiny = torch.zeros(16, device="cuda")
    result["smallest_kernel_us"] = round(race({"add": [lambda: tiny.add_(1)] * 24})["add"], 2)
    for size in (4096, 8192):
        pairs = [(normal(size, size, seed=i), normal(size, size, seed=9 + i)) for i in range(4)]
        us = race({"mm": [lambda p=p: torch.mm(*p) for p in pairs]})["mm"]  # type: ignore[misc]
        result[f"cublas_bf16_{size}_tflop_per_s"] = round(2 * size**3 / us / 1e6, 1)
    return result


def provenance(command: str) -> dict[str, Any]:
    """Machine, versions, date and command."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,clocks.sm,power.limit",
        "--format=csv,noheader",
    ]
    props = torch.cuda.get_device_properties(0)
    return {
        "machine": subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip(),
        "device": torch.cuda.get_device_name(),
        "multiprocessors": props.multi_processor_count,
        "l2_mib": round(props.L2_cache_size / 2**20, 1),
        "cpu_cores": os.cpu_count(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": {
            "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "python": platform.python_version(),
        },
        "command": command,
    }  # fmt: skip
