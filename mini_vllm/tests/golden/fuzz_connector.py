"""Fresh random workloads with a KV connector through the real `Scheduler` of vLLM 0.22.1 and ours, side by side.

Run by hand from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/fuzz_connector.py --seeds 1000:1600 --minutes 30

The workloads are wider than the recorded ones (`make_connector_workload(seed, wide=True)`): odd block sizes, more ids
that are used again, more aborts. Compared after every step, in full: the plan, what the connector was asked, what the
front end was told, and all of `scheduler_state`. The known bugs of the release (`upstream_patches.py`) are patched. The
first difference ends a workload and is printed; the exit status is 1 where there was one.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from fuzz import arguments, first_difference, run  # noqa: E402
from record_connector import ConnectorRecorder  # noqa: E402
from upstream_patches import CONNECTOR_PATCHES, COORDINATOR_PATCHES, PATCHES, applied  # noqa: E402
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402

from mini_vllm.tests.golden.connector_workload import make_connector_workload  # noqa: E402
from mini_vllm.tests.golden.replay_connector import ConnectorReplay  # noqa: E402


def compare(workload: Any, folder: str, seen: Counter[str]) -> tuple[int, str]:
    """See `fuzz.first_difference`."""
    real = ConnectorRecorder(workload, folder)

    def count(step: dict[str, Any]) -> None:
        seen.update(call[0] for call in real.last["calls"])
        seen["preemption"] += bool(step["preempted"])

    found = first_difference(real, ConnectorReplay(workload), lambda one: one.is_busy(), count)
    seen.update(real.seen)
    return found


def features_of(workload: Any) -> list[str]:
    """What a workload has, to be counted."""
    config = workload.config
    found = [f"groups {len(config['groups'])}", f"async {config['async']}", f"policy {config['policy']}"]
    found += ["drafts"] * ("drafts" in config)
    return found + ["resets"] * any(reset is not None for reset in workload.resets)


if __name__ == "__main__":
    make = partial(make_connector_workload, wide=True)
    patches = [
        applied(KVCacheCoordinator, [*COORDINATOR_PATCHES]),
        applied(Scheduler, [*PATCHES, *CONNECTOR_PATCHES]),
    ]
    sys.exit(run(arguments(__doc__).parse_args(), make, compare, features_of, patches))
