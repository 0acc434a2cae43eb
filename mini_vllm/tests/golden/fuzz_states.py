"""Fresh random workloads over states, cross attention and chunks through the real `Scheduler` of vLLM 0.22.1 and ours.

Run by hand from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/fuzz_states.py --seeds 1000:1600 --minutes 30

The workloads are wider than the recorded ones (`make_state_workload(seed, wide=True)`): odd block sizes, states kept
without prefix caching, more ids that are used again, more aborts. Compared after every step, in full: the plan, what
the front end was told, and all of `scheduler_state`. The known bugs of the release (`upstream_patches.py`,
`upstream_state_patches.py`) are patched. The first difference ends a workload and is printed; the exit status is 1
where there was one.
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
from record_states import STATE_LIKE, StateRecorder, features_of  # noqa: E402
from upstream_patches import applied  # noqa: E402
from upstream_state_patches import applied_to_states  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402

from mini_vllm.tests.golden.replay_states import StateReplay  # noqa: E402
from mini_vllm.tests.golden.state_workload import make_state_workload  # noqa: E402


def compare(workload: Any, folder: str, seen: Counter[str]) -> tuple[int, str]:
    """See `fuzz.first_difference`."""
    return first_difference(
        StateRecorder(workload, folder), StateReplay(workload), lambda one: one.scheduler.has_unfinished_requests(),
        lambda step: seen.update(preemption=bool(step["preempted"])),
    )  # fmt: skip


if __name__ == "__main__":
    make, patches = partial(make_state_workload, wide=True), [applied(Scheduler, STATE_LIKE), applied_to_states()]
    sys.exit(run(arguments(__doc__).parse_args(), make, compare, features_of, patches))
