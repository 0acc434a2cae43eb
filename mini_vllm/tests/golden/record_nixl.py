"""Makes random calls of the scheduler's half of vLLM 0.22.1's NIXL connector and writes down what it answers; and which
ranks read which heads from which.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_nixl.py

NIXL itself is not needed: the half has no part in transfers. The result is `nixl.json.xz`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]
os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "5600"
os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "localhost"

from nixl_workload import BLOCK_SIZE, LEASE_S, Player, meta_of  # noqa: E402
from record_scheduler import write  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import scheduler as upstream  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import compute_tp_mapping  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

SEEDS, CALLS = 40, 120
SIZES, HEADS = (1, 2, 4, 8), (1, 2, 4, 8)


def record_calls(seed: int) -> list[Any]:
    """One run."""
    transfer = SimpleNamespace(
        get_from_extra_config={"kv_lease_duration": LEASE_S}.get, kv_buffer_device="cpu", kv_role="kv_both"
    )
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=BLOCK_SIZE),
        parallel_config=SimpleNamespace(data_parallel_index=0, tensor_parallel_size=1),
        kv_transfer_config=transfer,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
    )
    clock = [1000.0]
    upstream.time.perf_counter = lambda: clock[0]
    half = upstream.NixlConnectorScheduler(config, "here", SimpleNamespace(kv_cache_groups=[]))

    def build() -> dict[str, Any]:
        meta = half.build_connector_meta(SimpleNamespace())
        loads = {
            name: [[list(group) for group in load.local_block_ids], {**vars(load.remote), "tp_size": load.tp_size}]
            for name, load in meta.reqs_to_recv.items()
        }
        return meta_of(meta, clock[0], loads)

    def forward(seconds: float) -> None:
        clock[0] += seconds

    return Player(half, seed, RequestStatus.__getitem__, build, forward).run(CALLS)


class Topology(SimpleNamespace):
    """What `compute_tp_mapping` asks."""


def record_mappings() -> list[Any]:
    """[ranks here, rank, ranks there, heads, MLA, source ranks, offset in heads of a rank here]."""
    found = []
    for here in SIZES:
        for there in SIZES:
            for heads in HEADS:
                for is_mla in (False, True):
                    for rank in range(here):
                        local = Topology(tp_rank=rank, tp_size=here, total_num_kv_heads=heads, is_mla=is_mla)
                        mapping = compute_tp_mapping(local, there, (FullAttentionSpec,))
                        ranks = list(mapping.all_source_ranks)
                        found.append([here, rank, there, heads, is_mla, ranks, mapping.rank_offset_factor])
    return found


if __name__ == "__main__":
    calls = [record_calls(seed) for seed in range(SEEDS)]
    write("nixl.json.xz", "record_nixl.py", {"calls": CALLS}, runs=calls, mappings=record_mappings())
