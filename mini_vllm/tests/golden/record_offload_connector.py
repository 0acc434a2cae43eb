"""Has the real `OffloadingConnectorScheduler` of vLLM 0.22.1 answer and order beside our scheduler.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_offload_connector.py

`offload_connector_workload.py` says what happens. The scheduler around it is ours, whose decisions with a connector are
compared with the real one's elsewhere (`record_connector.py`). The result is `offload-connector.json.xz`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

import torch  # noqa: E402
from record_scheduler import write  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (  # noqa: E402
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec  # noqa: E402
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager  # noqa: E402

from mini_vllm.tests.golden.offload_connector_workload import (  # noqa: E402
    NUM_SEEDS,
    OffloadConnectorWorkload,
    packed,
    spec_of,
)


def make_half(settings: dict[str, Any]) -> Any:
    """vLLM's, over its own manager."""
    groups = []
    for window, size in settings["groups"]:
        common = {"block_size": size, "num_kv_heads": 1, "head_size": 64 // size, "dtype": torch.float32}
        kind = FullAttentionSpec(**common) if window is None else SlidingWindowSpec(**common, sliding_window=window)
        groups.append(SimpleNamespace(kv_cache_spec=kind))
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=settings["ranks"]),
        cache_config=SimpleNamespace(enable_prefix_caching=settings["caching"]),
    )
    manager = CPUOffloadingManager(settings["host"], settings["policy"], True, settings["threshold"])
    spec = spec_of(
        settings, vllm_config=config, kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
        get_manager=lambda: manager,
    )  # fmt: skip
    return OffloadingConnectorScheduler(spec)


def main() -> None:
    traces, samples, kinds, stopped = [], {}, Counter[str](), []
    for seed in range(NUM_SEEDS):
        try:
            lines = OffloadConnectorWorkload(seed, make_half, OffloadingWorkerMetadata).run()
        except AssertionError as error:
            stopped.append([seed, str(error)])
            traces.append(None)
            continue
        traces.append(packed(lines))
        kinds["steps"] += len(lines)
        for kind, *more in (entry for line in lines for entry in json.loads(line)):
            kinds["loads"] += kind == "loads" and bool(more[0])
            kinds["stores"] += kind == "stores" and bool(more[0])
            kinds["flushes"] += kind == "stores" and bool(more[1])
            kinds["asked again later"] += kind == "matched" and more[2] is None
            kinds["preemptions"] += kind == "planned" and bool(more[1])
        if seed < 6:
            samples[str(seed)] = lines
    counted = {"workloads": NUM_SEEDS, "counts": dict(sorted(kinds.items())), "stopped": stopped}
    write("offload-connector.json.xz", "record_offload_connector.py", counted, traces=traces, samples=samples)


if __name__ == "__main__":
    main()
