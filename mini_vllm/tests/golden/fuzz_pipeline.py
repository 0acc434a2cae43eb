"""Fresh random workloads with several batches in flight through the real core of vLLM 0.22.1 and ours, side by side.

Run by hand from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/fuzz_pipeline.py --seeds 1000:1600 --minutes 30

The workloads are wider than the recorded ones (`make_pipeline_workload(seed, wide=True)`): odd block sizes, more ids
that are used again, more aborts and resets. Compared after every step, in full: the plan with what is sent back to the
stages, which batch was taken in, what the front end was told, all of `scheduler_state`, the KV cache events. The known
bugs of the release (`upstream_patches.py`) are patched. The first difference ends a workload and is printed; the exit
status is 1 where there was one.
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
from record_pipeline import ALL_PATCHES, PipelineRecorder, features_of  # noqa: E402
from upstream_patches import applied  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402

from mini_vllm.tests.golden.pipeline_workload import make_pipeline_workload  # noqa: E402
from mini_vllm.tests.golden.replay_pipeline import PipelineReplay  # noqa: E402


def compare(workload: Any, folder: str, seen: Counter[str]) -> tuple[int, str]:
    """See `fuzz.first_difference`."""
    real = PipelineRecorder(workload, folder)
    found = first_difference(
        real, PipelineReplay(workload), lambda one: one.is_busy(), lambda step: seen.update(preemption=step[2] > 0)
    )
    seen.update(real.stages.seen)
    return found


if __name__ == "__main__":
    make = partial(make_pipeline_workload, wide=True)
    sys.exit(run(arguments(__doc__).parse_args(), make, compare, features_of, [applied(Scheduler, ALL_PATCHES)]))
