"""Drives the real `Scheduler` over KV cache groups (sliding windows, hybrids) and writes down decisions and events.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_groups.py 120

As `record_scheduler.py`, with every block table, and for each step one checksum over the whole free queue and the KV
cache events, as they go over the wire. The known bugs (`upstream_patches.py`) are patched. The result is
`scheduler-groups.json.xz`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"  # block hashes begin with it, on both sides
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

import msgspec  # noqa: E402
from group_workload import make_group_workload  # noqa: E402
from record_scheduler import Recorder, counts, stand_in_model, write  # noqa: E402
from scheduler_workload import Workload, checksum  # noqa: E402
from upstream_patches import PATCHES, applied  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402

KINDS = ("sliding", "hybrid", "full")


class Events:
    """Stands in for the publisher, and keeps what it is given."""

    def __init__(self) -> None:
        self.wire: list[Any] = []

    def publish(self, batch: Any) -> None:
        """Decoded again, as a subscriber would see them."""
        self.wire += msgspec.msgpack.decode(msgspec.msgpack.encode(batch.events))

    def take(self) -> list[Any]:
        """Those since the last call."""
        events, self.wire = self.wire, []
        return events


class GroupRecorder(Recorder):
    """One workload; its records have a list of block ids for each group."""

    def __init__(self, workload: Workload, model_folder: str) -> None:
        super().__init__(workload, model_folder)
        self.events = self.scheduler.kv_event_publisher = Events()
        self.events_seen: Counter[str] = Counter()

    def _step(self, index: int) -> dict[str, Any]:
        if index < len(self.workload.arrivals):
            self._before(index)
        output = self.scheduler.schedule()
        stats = self.scheduler.kv_cache_manager.make_prefix_cache_stats()
        seen = (stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits)
        self.hits = [total + new for total, new in zip(self.hits, seen, strict=True)]
        cached = output.scheduled_cached_reqs
        rows = (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens)
        record = {
            "tokens": dict(output.num_scheduled_tokens),
            "new": [[new.req_id, new.block_ids, new.num_computed_tokens] for new in output.scheduled_new_reqs],
            "cached": [list(row) for row in zip(*rows, strict=True)],
            "resumed": sorted(cached.resumed_req_ids),
            "preempted": sorted(output.preempted_req_ids),
            "finished": sorted(output.finished_req_ids),
            "hits": self.hits,
        }
        self._update(output)
        free = self.scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        ids, events = [block.block_id for block in free], self.events.take()
        self.events_seen.update(event[0] for event in events)
        return {**record, "free": [len(free), *ids[:4], checksum(ids, events)]}


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    init_none_hash(sha256)
    traces, features, events = [], Counter(), Counter()
    with stand_in_model() as folder, applied(Scheduler, list(PATCHES)):
        for seed in range(num_workloads):
            kind = KINDS[0] if seed % 5 in (0, 1) else KINDS[2] if seed % 5 == 4 else KINDS[1]
            workload = make_group_workload(seed, kind)
            recorder = GroupRecorder(workload, folder)
            traces.append({"kind": kind, "steps": recorder.run()})
            features.update({*workload.features, kind, f"groups={len(workload.config['groups'])}"})
            events.update(recorder.events_seen)
    steps = [step for trace in traces for step in trace["steps"]]
    more = {
        **counts(traces, steps),
        "events": dict(events),
        "workloads_by_feature": dict(sorted(features.items())),
        "patches": {name: patch.why for name, patch in PATCHES.items()},
    }
    write("scheduler-groups.json.xz", f"record_groups.py {num_workloads}", more, traces=traces)


if __name__ == "__main__":
    main()
