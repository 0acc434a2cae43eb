"""Fresh random workloads with grammars through the real `Scheduler` of vLLM 0.22.1 and ours, in lockstep.

Run by hand from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/fuzz_grammars.py --seeds 1000:1400 --minutes 20

Grammars are xgrammar's there and ours here, over seven tokens (`grammar_workload.py`). Compared before and after each
half step: all that `fuzz_scheduler.py` compares, both queues of those that wait, the state of the thinking, and in each
step which tokens each row of bits allows. Every third workload aborts requests between plan and result. The known bugs
(`upstream_patches.py`) are patched. The first difference ends a workload and is printed; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from fuzz_scheduler import Difference, Lockstep, compare, plan_of  # noqa: E402
from record_grammars import GrammarRecorder  # noqa: E402
from record_scheduler import model_output, stand_in_model  # noqa: E402
from upstream_patches import PATCHES, applied  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.outputs import DraftTokenIds as RealDraftTokenIds  # noqa: E402

from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput  # noqa: E402
from mini_vllm.tests.golden import grammar_workload  # noqa: E402
from mini_vllm.tests.golden.replay import GrammarReplay  # noqa: E402
from mini_vllm.tests.golden.scheduler_workload import Workload  # noqa: E402


class GrammarLockstep(Lockstep):
    """With grammars, and perhaps drafts."""

    def _make(self, workload: Workload, folder: str) -> tuple[Any, Any]:
        return GrammarRecorder(workload, folder), GrammarReplay(workload)

    def _step(self, index: int) -> None:
        if index >= len(self.workload.arrivals):
            self.real.gate.open(index)
            self.mini.gate.open(index)
        self.seen["steps in which one waits for its grammar"] += bool(self.real.scheduler.skipped_waiting)
        super()._step(index)

    def _check(self, moment: str) -> None:
        super()._check(moment)
        self._compare(moment, grammar_workload.state_of(self.real.scheduler), self.mini_state())

    def mini_state(self) -> dict[str, Any]:
        """Ours, in the same words."""
        return grammar_workload.state_of(self.mini.scheduler)

    def _compare(self, moment: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        compare(f"workload {self.workload.seed} {self.workload.config}, step {self.num_steps}, {moment}", theirs, ours)

    def _update(self, theirs: Any, ours: Any) -> None:
        config, deferred = self.workload.config, theirs.pending_structured_output_tokens
        self._compare("deferred", {"it is": deferred}, {"it is": ours.pending_structured_output_tokens})
        if deferred:
            self._take_in()
            if "drafts" in config:
                last = list(self.real.last)
                told = RealDraftTokenIds(last, self.real.model.drafts(last))
                self.real.scheduler.update_draft_token_ids_in_output(told, theirs)
                here = DraftTokenIds(last, self.mini.model.drafts(last))
                self.mini.scheduler.update_draft_token_ids_in_output(here, ours)
                self._compare("drafts in the plan", plan_of(theirs), plan_of(ours))
                wrong = theirs.num_invalid_spec_tokens or {}
                self._compare("forbidden drafts", {"n": wrong}, {"n": ours.num_invalid_spec_tokens})
        names = self._sample(theirs, ours, deferred)
        if deferred or (config["async"] and names and len(self.real.in_flight) < 2):
            return
        self._take_in()
        if "drafts" in config and not config["async"]:
            self.real.scheduler.update_draft_token_ids(RealDraftTokenIds(names, self.real.model.drafts(names)))
            self.mini.scheduler.update_draft_token_ids(DraftTokenIds(names, self.mini.model.drafts(names)))

    def _sample(self, theirs: Any, ours: Any, deferred: bool) -> list[str]:
        self.real._sample(theirs, deferred)
        names, drafts = list(ours.num_scheduled_tokens), ours.scheduled_spec_decode_tokens
        grammar_output = self.mini.scheduler.get_grammar_bitmask(ours)
        legal = grammar_workload.legal_tokens(grammar_output, drafts)
        self._compare("rows of bits", {"legal": self.real.legal}, {"legal": legal})
        sampled = self.mini.model.sample(names, self.mini.is_due, drafts, grammar_output, deferred)
        rows = list(range(len(names)))
        self.mini.shuffle(rows)
        model_rows = ModelRunnerOutput([names[row] for row in rows], [sampled[row] for row in rows])
        self.mini.in_flight.append((ours, model_rows))
        plan, output = self.real.in_flight.pop()  # the release cuts the lists that it is given
        there = [output.sampled_token_ids[row] for row in rows]
        self.real.in_flight.append((plan, model_output([names[row] for row in rows], there)))
        self.seen.update({"rows of bits": sum(map(len, legal.values())), "deferred": int(deferred)})
        return names

    def _take_in(self) -> None:
        self.real.told, self.mini.told = [], []
        self.real._take_in()
        self.mini.take_in()
        self._compare("outputs", {"told": self.real.told}, {"told": self.mini.told})
        obeying = self.workload.config["grammars"]
        self.seen.update(f"obeyed, and ended: {why}" for name, _, why in self.real.told if why and name in obeying)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1000:1400", help="A:B, the first and the one after the last")
    parser.add_argument("--minutes", type=float, default=20.0)
    args = parser.parse_args()
    start, stop = (int(part) for part in args.seeds.split(":"))
    until, done, steps, differences, seen = time.monotonic() + 60 * args.minutes, 0, 0, 0, Counter[str]()
    init_none_hash(sha256)
    with stand_in_model() as folder, applied(Scheduler, list(PATCHES)):
        for seed in range(start, stop):
            if time.monotonic() > until:
                break
            workload = grammar_workload.make_grammar_workload(seed)
            lockstep = GrammarLockstep(workload, folder)
            try:
                lockstep.run()
            except Difference as difference:
                differences += 1
                print(str(difference)[:3000], flush=True)
            done, steps = done + 1, steps + lockstep.num_steps
            seen.update(lockstep.seen)
            seen.update(f"workloads, {name}" for name in grammar_workload.features(workload))
    print(f"seeds {start}:{start + done}, {done} workloads, {steps} steps, {differences} differences")
    print(dict(sorted(seen.items())))
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
