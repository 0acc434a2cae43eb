"""Fresh random workloads with media through the real `Scheduler` of vLLM 0.22.1 and ours, side by side.

Run by hand from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/fuzz_media.py --seeds 1000:1600 --minutes 30

The workloads are wider than the recorded ones (`make_media_workload(seed, wide=True)`): odd block sizes, more ids that
are used again, more aborts. Compared after every step, in full: the plan, what is encoded and forgotten, what the front
end was told, and all that scheduler and encoder cache know. The known bugs of the release (`upstream_patches.py`,
`media_patches.py`) are patched. The first difference ends a workload and is printed; the exit status is 1 where there
was one. With `--connector` the workloads are those of `fuzz_connector.py`, with items.
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
from record_media import ALL, MediaConnectorRecorder, MediaRecorder, kinds_of  # noqa: E402
from upstream_patches import CONNECTOR_PATCHES, COORDINATOR_PATCHES, applied  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402

from mini_vllm.tests.golden.media_patches import HASH_PATCHES, MEDIA_PATCHES  # noqa: E402
from mini_vllm.tests.golden.media_workload import make_media_connector_workload, make_media_workload  # noqa: E402
from mini_vllm.tests.golden.replay_media import MediaConnectorReplay, MediaReplay  # noqa: E402

CONNECTOR = {name: patch for name, patch in CONNECTOR_PATCHES.items() if name != "what-is-to-be-dropped-stays-so"}


def compare(workload: Any, folder: str, seen: Counter[str]) -> tuple[int, str]:
    """See `fuzz.first_difference`."""
    has_connector = "connector" in workload.config
    real = (MediaConnectorRecorder if has_connector else MediaRecorder)(workload, folder)
    mini = (MediaConnectorReplay if has_connector else MediaReplay)(workload)
    found = first_difference(real, mini, is_busy, lambda step: seen.update(preemption=bool(step["preempted"])))
    seen.update(real.seen)
    return found


def is_busy(one: Any) -> bool:
    """As `EngineCore` asks."""
    return one.scheduler.has_unfinished_requests() or one.scheduler.has_finished_requests()


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--connector", action="store_true", help="with a KV connector, as fuzz_connector.py")
    args = parser.parse_args()
    patches = [
        applied(Scheduler, list({**ALL, **CONNECTOR} if args.connector else ALL), MEDIA_PATCHES),
        applied(kv_cache_utils, list(HASH_PATCHES), HASH_PATCHES),
        applied(KVCacheCoordinator, [*COORDINATOR_PATCHES]),
    ]
    make = make_media_connector_workload if args.connector else partial(make_media_workload, wide=True)
    return run(args, make, compare, kinds_of, patches)


if __name__ == "__main__":
    sys.exit(main())
