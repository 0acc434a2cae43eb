"""What do experts on two replicas cost? `python -m benchmarks.expert_parallel` (one minute; `--quick` 10 s).

One layer of experts, dealt to two replicas, each a process with one thread and a batch of its own. Both ways of
handing rows over, beside a replica that has all experts: bytes that a replica sends in a layer, as counted, and the
time of a layer, the median of the repeats of the slower replica. Weights and the router's logits are random: rows
spread evenly over the experts, which is the best case for sending each to its experts alone. Writes
results/expert_parallel.{json,md}.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.common import limit_threads, machine, save, table

SIZES = {"pocket-moe": (8, 2, 256, 96), "64 experts": (64, 2, 512, 128)}
"""Experts, experts of a token, hidden size, inner size."""
ROWS = (1, 16, 128, 512)
ALONE = "all experts here"


def layer_of(sizes: tuple[int, int, int, int], backend: str, group: Any) -> Any:
    """The part of a layer that this replica has."""
    from mini_vllm.distributed.device_communicators.all2all import make_all2all_manager
    from mini_vllm.layers.context import ModelContext
    from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig
    from mini_vllm.layers.fused_moe.layer import FusedMoE

    context = ModelContext(np.dtype("float32"))
    if backend != ALONE:
        ep = FusedMoEParallelConfig(all2all=make_all2all_manager(backend, group))
        context = ModelContext(np.dtype("float32"), enable_expert_parallel=True, ep=ep)
    layer = FusedMoE(*sizes, context=context)
    for array in layer.arrays:
        array[:] = np.random.default_rng(0).normal(size=array.shape) * 0.05
    return layer


def replica(dp_rank: int, group: Any, repeats: int, answer: Connection) -> None:
    """All cases, in the same order in both replicas; sends (bytes, seconds of each repeat) of each."""
    from mini_vllm.config.parallel import ALL2ALL_BACKENDS

    group.of_replica(dp_rank).join()
    found = []
    for sizes in SIZES.values():
        for backend in (ALONE, *ALL2ALL_BACKENDS):
            layer = layer_of(sizes, backend, group)
            for rows in ROWS:
                rng = np.random.default_rng([dp_rank, rows])
                x = rng.normal(size=(rows, sizes[2])).astype(np.float32)
                logits = rng.normal(size=(rows, sizes[0])).astype(np.float32)
                times = []
                for _ in range(repeats):
                    group.all_reduce(np.zeros(1, np.int64))
                    before, start = group.num_bytes_sent, time.perf_counter()
                    layer(x, logits)
                    times.append(time.perf_counter() - start)
                found.append((group.num_bytes_sent - before, times))
    answer.send(found)


def run(repeats: int) -> list[dict[str, Any]]:
    """A row for each layer and number of rows."""
    from mini_vllm.config.parallel import ALL2ALL_BACKENDS
    from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup

    group, context = DataParallelGroup(2), multiprocessing.get_context("spawn")
    os.environ.update(limit_threads(1, {}))  # of the replicas
    pipes, workers = [], []
    for dp_rank in range(2):
        ours, theirs = context.Pipe()
        workers.append(context.Process(target=replica, args=(dp_rank, group, repeats, theirs), daemon=True))
        workers[-1].start()
        theirs.close()
        pipes.append(ours)
    of_replicas = [pipe.recv() for pipe in pipes]
    cases = [(name, how, rows) for name in SIZES for how in (ALONE, *ALL2ALL_BACKENDS) for rows in ROWS]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for (name, how, rows), *both in zip(cases, *of_replicas, strict=True):
        row = found.setdefault((name, rows), {"layer": name, "rows": rows})
        slower = [max(pair) for pair in zip(*(times for _, times in both), strict=True)]
        row[how] = {
            "bytes": round(statistics.mean(num_bytes for num_bytes, _ in both)),
            "ms": 1e3 * statistics.median(slower),
        }
    return list(found.values())


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats; writes nothing")
    args = parser.parse_args()
    facts, found = machine(), run(5 if args.quick else 60)
    ways = [key for key in found[0] if key not in ("layer", "rows")]
    rows = [
        [row["layer"], row["rows"], *(f"{row[how]['ms']:.2f}" for how in ways),
         *(f"{row[how]['bytes']:,}" for how in ways[1:])]
        for row in found
    ]  # fmt: skip
    heads = ["layer", "rows each", *(f"{how}, ms" for how in ways), *(f"{how}, bytes" for how in ways[1:])]
    load = ", ".join(f"{value:.1f}" for value in facts["load_average_at_start"])
    note = f"Two replicas of one thread on {os.cpu_count()} cores. {facts['processor']}, Python {facts['python']}; "
    note += f"load average {load}. Wall time of a layer, bytes that a replica sends in it."
    result = {"machine": facts, "rows": found}
    save("expert_parallel", result, f"# Experts on two replicas\n\n{note}\n\n{table(heads, rows)}\n", not args.quick)


if __name__ == "__main__":
    main()
