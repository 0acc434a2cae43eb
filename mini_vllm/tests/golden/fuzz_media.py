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

import argparse
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from fuzz_connector import plain  # noqa: E402
from record_media import ALL, MediaConnectorRecorder, MediaRecorder, kinds_of  # noqa: E402
from record_scheduler import STEP_LIMIT, stand_in_model  # noqa: E402
from upstream_patches import CONNECTOR_PATCHES, applied  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402

from mini_vllm.tests.golden.media_patches import HASH_PATCHES, MEDIA_PATCHES  # noqa: E402
from mini_vllm.tests.golden.media_workload import make_media_connector_workload, make_media_workload  # noqa: E402
from mini_vllm.tests.golden.replay_media import MediaConnectorReplay, MediaReplay  # noqa: E402

RECORDER_AND_REPLAY = (MediaRecorder, MediaReplay)
CONNECTOR = {name: patch for name, patch in CONNECTOR_PATCHES.items() if name != "what-is-to-be-dropped-stays-so"}


def first_difference(workload: Any, folder: str, seen: Counter[str]) -> tuple[int, str]:
    """How many steps were the same, and what then was not; "" where all were."""
    both = (MediaConnectorRecorder, MediaConnectorReplay) if "connector" in workload.config else RECORDER_AND_REPLAY
    real, mini, index = both[0](workload, folder), both[1](workload), 0
    while index < len(workload.arrivals) or is_busy(real.scheduler):
        if index == STEP_LIMIT:
            return index, f"it does not end: {workload.config}"
        theirs, ours = real._step(index), mini.step(index)
        if theirs != ours:
            where = f"workload {workload.seed} {workload.config}, step {index}"
            for key, value in plain(real.last).items():
                other = plain(mini.last)[key]
                if value != other:
                    return index, f"{where}, {key}:\n  vLLM 0.22.1 {value}\n  mini_vllm   {other}"
        index += 1
        seen["preemption"] += bool(theirs["preempted"])
    seen.update(real.seen)
    return index, "ours goes on" if is_busy(mini.scheduler) else ""


def is_busy(scheduler: Any) -> bool:
    """As `EngineCore` asks."""
    return scheduler.has_unfinished_requests() or scheduler.has_finished_requests()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:500", help="A:B, the first and the one after the last")
    parser.add_argument("--connector", action="store_true", help="with a KV connector, as fuzz_connector.py")
    parser.add_argument("--minutes", type=float, default=30.0)
    args = parser.parse_args()
    start, stop = (int(part) for part in args.seeds.split(":"))
    until, done, steps, differences, seen = time.monotonic() + 60 * args.minutes, 0, 0, 0, Counter[str]()
    kv_cache_utils.init_none_hash(sha256)
    with (
        stand_in_model() as folder,
        applied(Scheduler, list({**ALL, **CONNECTOR} if args.connector else ALL), MEDIA_PATCHES),
        applied(kv_cache_utils, list(HASH_PATCHES), HASH_PATCHES),
    ):
        for seed in range(start, stop):
            if time.monotonic() > until:
                break
            make = make_media_connector_workload if args.connector else partial(make_media_workload, wide=True)
            workload = make(seed)
            same, difference = first_difference(workload, folder, seen)
            if difference:
                print(seed, difference[:6000], flush=True)
            done, steps, differences = done + 1, steps + same, differences + bool(difference)
            seen.update(kinds_of(workload))
            seen["odd blocks"] += workload.config["block_size"] in (3, 5, 6, 7, 12)
            seen["salts"] += any(arrival.salt for step in workload.arrivals for arrival in step)
    print(f"seeds {start}:{start + done}, {done} workloads, {steps} steps, {differences} differences")
    print(dict(sorted(seen.items())))
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
