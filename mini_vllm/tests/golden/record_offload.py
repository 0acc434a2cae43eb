"""Asks the real `CPUOffloadingManager` of vLLM 0.22.1, with both of its policies, over random workloads.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    .venv-vllm/bin/python mini_vllm/tests/golden/record_offload.py

`offload_workload.py` says what is asked. The result is `offload.json.xz`: for each seed and each question a checksum of
the answer and one of all that the manager knows then, and of some seeds the answers themselves.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from offload_workload import NUM_SEEDS, OffloadWorkload, packed, settings_of  # noqa: E402
from record_scheduler import write  # noqa: E402
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager  # noqa: E402


def main() -> None:
    traces, samples, kinds = [], {}, Counter[str]()
    for seed in range(NUM_SEEDS):
        records = OffloadWorkload(CPUOffloadingManager(**settings_of(seed)), seed).run()
        traces.append(packed(records))
        kinds.update(answer[0] for answer, _ in records)
        kinds.update({"evicted": sum(len(a[1][1]) for a, _ in records if a[0] == "store" and a[1])})
        kinds.update({"no room": sum(a == ["store", None] for a, _ in records)})
        if seed < 8:
            samples[str(seed)] = [answer for answer, _ in records]
    more = {"workloads": NUM_SEEDS, "asked": dict(sorted(kinds.items()))}
    write("offload.json.xz", "record_offload.py", more, traces=traces, samples=samples)


if __name__ == "__main__":
    main()
