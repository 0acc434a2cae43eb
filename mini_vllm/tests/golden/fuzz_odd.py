"""As `fuzz_scheduler.py`, over the workloads of `odd_workload.py`.

PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/fuzz_odd.py --seeds 0:300 --minutes 10
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from fuzz import arguments  # noqa: E402
from fuzz_scheduler import Difference, Lockstep  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import stand_in_model  # noqa: E402
from upstream_patches import PATCHES, applied  # noqa: E402
from vllm.sampling_params import RepetitionDetectionParams as RealDetection  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.request import RequestStatus as RealStatus  # noqa: E402

from mini_vllm.tests.golden.odd_workload import OddArrival, make_odd_workload  # noqa: E402
from mini_vllm.tests.golden.replay_odd import OddReplay  # noqa: E402


class OddRecorder(GroupRecorder):
    """With the further parameters of each request."""

    def _more_params(self, arrival: OddArrival) -> dict[str, Any]:
        detection = {"repetition_detection": RealDetection(*arrival.repetition)} if arrival.repetition else {}
        return {**arrival.more, **detection}


class OddLockstep(Lockstep):
    """Leaves out a name whose request has not ended, and aborts several at once."""

    def _make(self, workload: Any, folder: str) -> tuple[Any, Any]:
        return OddRecorder(workload, folder), OddReplay(workload)

    def _step(self, index: int) -> None:
        if index < len(self.workload.arrivals):
            self.mini.num_sampled = self.real.num_sampled
            self.seen["named again"] += self.mini.only_new_names(index)
            names = self.mini.abort_some(index)
            self.real.scheduler.finish_requests(names, RealStatus.FINISHED_ABORTED)
            self.seen["several at once"] += len(names) > 1
        super()._step(index)


def main() -> int:
    args = arguments(__doc__).parse_args()
    start, stop = (int(part) for part in args.seeds.split(":"))
    until, done, steps, differences, seen = time.monotonic() + 60 * args.minutes, 0, 0, 0, Counter[str]()
    init_none_hash(sha256)
    with stand_in_model() as folder, applied(Scheduler, list(PATCHES)):
        for seed in range(start, stop):
            if time.monotonic() > until:
                break
            lockstep = OddLockstep(make_odd_workload(seed), folder)
            seen.update(make_odd_workload(seed).odd_features)
            try:
                lockstep.run()
            except Difference as difference:
                differences += 1
                print(str(difference)[:3000], flush=True)
            done, steps = done + 1, steps + lockstep.num_steps
            seen.update(lockstep.seen)
    print(f"seeds {start}:{start + done}, {done} workloads, {steps} steps, {differences} differences")
    print(dict(sorted(seen.items())))
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
