"""Drives the real `Scheduler` of vLLM 0.22.1 over workloads with drafts and writes down its decisions.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_drafts.py 260

As `record_groups.py`, with drafts proposed and accepted at random; each step is kept as `draft_workload.short` has it.
The known bugs (`upstream_patches.py`) are patched. The result is `scheduler-drafts.json.xz`.
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

from draft_workload import make_draft_workload, proposed, short, verified  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import counts, model_output, stand_in_model, write  # noqa: E402
from upstream_patches import PATCHES, applied  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.outputs import DraftTokenIds  # noqa: E402

STATS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


class DraftRecorder(GroupRecorder):
    """One workload with drafts. stats: as the release counts them; per_position: accepted drafts by position."""

    def __init__(self, workload: Any, model_folder: str) -> None:
        super().__init__(workload, model_folder)
        self.stats: Counter[str] = Counter()
        self.per_position = [0] * workload.config["drafts"]["k"]
        self.planned: dict[str, list[int]] = {}

    def _step(self, index: int) -> dict[str, Any]:
        record = super()._step(index)
        state = {
            name: [r.num_computed_tokens, r.num_tokens, r.num_output_placeholders, len(r.spec_token_ids)]
            for name, r in self.scheduler.requests.items()
        }
        return short(record, self.planned, state)

    def _update(self, output: Any) -> None:
        seed, k = self.workload.seed, self.workload.config["drafts"]["k"]
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        ids, sampled = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not self.scheduler.requests[name].is_prefill_chunk
            new = verified(seed, name, self.num_sampled[name], self.planned.get(name, [])) if due else []
            sampled.append(new)
            self.num_sampled[name] += len(new)
        self.in_flight.append((output, model_output(ids, sampled)))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        self._count(self.scheduler.update_from_output(*self.in_flight.popleft()))
        if not self.workload.config["async"]:
            drafts = [proposed(seed, name, self.num_sampled[name], k) for name in ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))

    def _count(self, outputs: Any) -> None:
        for one in outputs.values():
            stats = one.scheduler_stats.spec_decoding_stats if one.scheduler_stats else None
            if stats is not None:
                self.stats.update({name: getattr(stats, name) for name in STATS})
                pairs = zip(self.per_position, stats.num_accepted_tokens_per_pos, strict=True)
                self.per_position = [a + b for a, b in pairs]


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 260
    init_none_hash(sha256)
    traces, features, totals = [], Counter(), Counter()
    with stand_in_model() as folder, applied(Scheduler, list(PATCHES)):
        for seed in range(num_workloads):
            workload = make_draft_workload(seed)
            recorder = DraftRecorder(workload, folder)
            steps = recorder.run()
            stats = [*(recorder.stats[name] for name in STATS), recorder.per_position]
            traces.append({"steps": steps, "stats": stats})
            drafts = workload.config["drafts"]
            groups = f"groups={len(workload.config['groups'])}"
            features.update({*workload.features, groups, f"method={drafts['method']}", f"k={drafts['k']}"})
            totals.update(recorder.stats)
    steps = [step for trace in traces for step in trace["steps"]]
    more = {
        **counts(traces, steps),
        "steps_with_drafts": sum(bool(step["drafts"]) for step in steps),
        **{name: totals[name] for name in STATS},
        "workloads_by_feature": dict(sorted(features.items())),
        "patches": {name: patch.why for name, patch in PATCHES.items()},
    }
    write("scheduler-drafts.json.xz", f"record_drafts.py {num_workloads}", more, traces=traces)


if __name__ == "__main__":
    main()
