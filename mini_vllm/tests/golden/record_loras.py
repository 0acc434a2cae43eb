"""Drives the real `Scheduler` of vLLM 0.22.1 over workloads with adapters and writes down its decisions.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_loras.py 120

As `record_groups.py`; each step is kept as `lora_workload.short` has it. No adapter is read: the scheduler knows names
and numbers alone. The known bugs (`upstream_patches.py`) are patched. The result is `scheduler-loras.json.xz`.
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

from lora_workload import make_lora_workload, short  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import counts, stand_in_model, write  # noqa: E402
from upstream_patches import PATCHES, applied  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402


class LoRARecorder(GroupRecorder):
    """One workload with adapters."""

    def _lora_request(self, arrival: Any) -> Any:
        number = self.workload.config["loras"]["of"][arrival.request_id]
        return LoRARequest(f"adapter-{number}", number, "nowhere") if number else None

    def _step(self, index: int) -> dict[str, Any]:
        record = super()._step(index)
        queues = self.scheduler.waiting, self.scheduler.skipped_waiting
        return short(record, [[request.request_id for request in queue] for queue in queues])


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    init_none_hash(sha256)
    traces, features = [], Counter()
    with stand_in_model() as folder, applied(Scheduler, list(PATCHES)):
        for seed in range(num_workloads):
            workload = make_lora_workload(seed)
            traces.append({"steps": LoRARecorder(workload, folder).run()})
            features.update({*workload.features, f"max_loras={workload.config['loras']['max_loras']}"})
    steps = [step for trace in traces for step in trace["steps"]]
    more = {
        **counts(traces, steps),
        "steps_with_skipped": sum(bool(step["skipped"]) for step in steps),
        "workloads_by_feature": dict(sorted(features.items())),
        "patches": {name: patch.why for name, patch in PATCHES.items()},
    }
    write("scheduler-loras.json.xz", f"record_loras.py {num_workloads}", more, traces=traces)


if __name__ == "__main__":
    main()
