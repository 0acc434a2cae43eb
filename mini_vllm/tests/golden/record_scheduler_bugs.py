"""Records workloads on which a known bug of vLLM 0.22.1's scheduler shows: with the bug, and with all of them patched.

Run as `record_scheduler.py`; the result is `scheduler-bugs.json.xz`:

    .venv-vllm/bin/python mini_vllm/tests/golden/record_scheduler_bugs.py 12

Seeds are tried in turn until that many workloads have been found for each bug. A trace "unpatched" has this one bug and
no other, so that where it parts from the patched trace is this bug's doing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from record_scheduler import Recorder, stand_in_model, write  # noqa: E402
from scheduler_workload import make_pressed_workload  # noqa: E402
from upstream_patches import PATCHES, applied  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402

MOST_SEEDS = 20_000
# A tie needs equal arrival times, which these workloads do not have; `test_scheduler.py` shows that one.
SHOWN = ("index-follows-removal", "forget-blocks-never-written")


def record(seed: int, folder: str, patches: list[str]) -> list[dict[str, Any]]:
    """The trace of one workload under these patches."""
    with applied(Scheduler, patches):
        return Recorder(make_pressed_workload(seed), folder).run()


def first_parting(one: list[Any], other: list[Any]) -> int | None:
    """The first step in which two traces differ; None: they are equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    init_none_hash(sha256)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SHOWN}
    tried = 0
    with stand_in_model() as folder:
        while min(map(len, found.values())) < wanted and tried < MOST_SEEDS:
            patched = record(tried, folder, list(PATCHES))
            for name, traces in found.items():
                unpatched = record(tried, folder, [other for other in PATCHES if other != name])
                parting = first_parting(unpatched, patched)
                if parting is not None and len(traces) < wanted:
                    traces.append({"seed": tried, "parts_at": parting, "unpatched": unpatched, "patched": patched})
            tried += 1
    more = {"seeds_tried": tried, "patches": {name: patch.why for name, patch in PATCHES.items()}}
    write("scheduler-bugs.json.xz", f"record_scheduler_bugs.py {wanted}", more, bugs=found)
    print({name: [(t["seed"], t["parts_at"]) for t in traces] for name, traces in found.items()})


if __name__ == "__main__":
    main()
