"""CUDA graphs and torch.compile on a decode step: eager, compiled, captured, both; and captured in pieces.

Each way runs the same greedy steps from the same state. Wall time counts: Python, launches and the GPU, with one
synchronization at the end, as an engine that never waits for a step would see it. A profile of a few steps says why:
kernels per step, calls that launch something, and how long the GPU was busy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.decoder import SHAPES, Decoder

BATCHES = (1, 8, 64)
STEPS = 100
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


def captured(model: Decoder, step: Callable[[], None]) -> Callable[[], None]:
    """The whole step as one graph."""
    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def warm_up(call: Callable[[], Any]) -> None:
    """Three calls on a side stream, as capture wants it: libraries initialize, memory is reserved."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)


def in_pieces(model: Decoder) -> Callable[[], None]:
    """Piecewise: graphs from one attention to the next, attention itself launched kernel by kernel."""
    warm_up(model.step)
    layers, pool = model.shape.layers, torch.cuda.graph_pool_handle()
    s = model.shape
    graphs, qkvs = [], []
    attended = [torch.zeros(model.batch, s.heads * s.head_dim, dtype=s.dtype, device="cuda") for _ in range(layers)]
    for piece in range(layers + 1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            if piece == 0:
                x, mask, cos, sin = model.start()
            else:
                x = model.after(piece - 1, x, attended[piece - 1])
            if piece < layers:
                qkvs.append(model.before(piece, x, cos, sin))
            else:
                model.finish(x)
        graphs.append(graph)

    def step() -> None:
        for i, qkv in enumerate(qkvs):
            graphs[i].replay()
            attended[i].copy_(model.attend(i, *qkv, mask))
        graphs[layers].replay()

    return step


def run(model: Decoder, step: Callable[[], None], steps: int = STEPS) -> tuple[float, list[list[int]]]:
    """Milliseconds per step, and the tokens of the first steps."""
    model.reset()
    tokens = []
    for _ in range(4):
        step()
        tokens.append(model.tokens.tolist())
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3, tokens


def profile(model: Decoder, step: Callable[[], None], steps: int = 5) -> dict[str, float]:
    """Per step: kernels on the GPU, launching calls on the CPU, and milliseconds in which the GPU was busy."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    model.reset()
    step()
    torch.cuda.synchronize()
    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = trace.events()
    kernels = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    launches = [e for e in events if e.name.startswith(LAUNCHES)]
    busy = sum(e.time_range.elapsed_us() for e in kernels)
    return {
        "kernels": round(len(kernels) / steps, 1), "launching_calls": round(len(launches) / steps, 1),
        "gpu_busy_ms": round(busy / steps / 1e3, 3),
    }  # fmt: skip


def ways(model: Decoder) -> dict[str, tuple[Callable[[], None], float, float]]:
    """name: (step, seconds to prepare it, MiB that preparing took)."""
    made: dict[str, tuple[Callable[[], None], float, float]] = {"eager": (model.step, 0.0, 0.0)}
    compiled = torch.compile(model.step, dynamic=False, fullgraph=True)
    builders = {
        "compiled": lambda: (compiled(), compiled)[1],
        "graph": lambda: captured(model, model.step),
        "compiled + graph": lambda: captured(model, compiled),
        "graphs in pieces": lambda: in_pieces(model),
    }
    for name, build in builders.items():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, start = torch.cuda.mem_get_info()[0], time.perf_counter()
        try:
            step = build()
        except Exception as error:
            print(f"  left out: {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            torch.cuda.synchronize()
            continue
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        made[name] = (step, round(seconds, 2), round((free - torch.cuda.mem_get_info()[0]) / 2**20))
    return made


@torch.inference_mode()
def one(name: str, batch: int) -> dict[str, Any]:
    """All ways of one model at one batch size; the repeats go round, so that no way has a quieter machine."""
    model = Decoder(SHAPES[name], batch)
    model.reset()
    made = ways(model)
    times: dict[str, list[float]] = {way: [] for way in made}
    tokens = {}
    for turn in range(6):
        for way, (step, _, _) in made.items():
            ms, tokens[way] = run(model, step)
            if turn:
                times[way].append(ms)
    rows = {}
    for way, (step, seconds, mib) in made.items():
        ms = statistics.median(times[way])
        rows[way] = {
            "ms_per_step": round(ms, 3), "all_ms": [round(t, 3) for t in sorted(times[way])],
            "tok_per_s": round(batch / ms * 1e3), "prepare_s": seconds, "prepare_mib": mib, **profile(model, step),
        }  # fmt: skip
    same = {way: tokens[way] == tokens["eager"] for way in made}
    return {"model": name, "batch": batch, "ways": rows, "same_first_tokens_as_eager": same}


def measure(name: str) -> list[dict[str, Any]]:
    """One shape at three batch sizes."""
    result = []
    for batch in BATCHES:
        torch._dynamo.reset()
        result.append(row := one(name, batch))
        for way, r in row["ways"].items():
            print("graphs", name, batch, way, {k: v for k, v in r.items() if k != "all_ms"}, flush=True)
        print("       same tokens as eager:", row["same_first_tokens_as_eager"], flush=True)
        torch.cuda.empty_cache()
    return result
