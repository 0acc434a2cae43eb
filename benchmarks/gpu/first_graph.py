"""A hundred layers, launched one by one and replayed: python benchmarks/gpu/first_graph.py. Shown in phase 05, §5.2."""

import time

import torch

net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.half) for _ in range(100)))


def microseconds(call, *args):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(100):
        call(*args)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 100 * 1e6


with torch.inference_mode():
    for rows in (1, 64, 1024, 4096):
        x = torch.randn(rows, 1024, device="cuda", dtype=torch.half)
        for _ in range(3):
            net(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x)
        turns = [(microseconds(net, x), microseconds(graph.replay)) for _ in range(9)]
        eager, replay = (sorted(times)[4] for times in zip(*turns, strict=True))
        print(f"{rows:>4} rows: eager {eager:5.0f} us, replay {replay:5.0f} us, {eager / replay:.1f} times", end="; ")
        print("same numbers" if torch.equal(y, net(x)) else "other numbers")
