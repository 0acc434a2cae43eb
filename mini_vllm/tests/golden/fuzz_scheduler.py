"""Fresh random workloads through the real `Scheduler` of vLLM 0.22.1 and ours, in lockstep, and compares all they know.

Run by hand from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/fuzz_scheduler.py --seeds 1000:1600 --minutes 30

Compared before and after each half step: the plan, both queues in their order, every request's status and counters, the
whole free queue, reference counts, hashes of blocks, block tables of every group, look-up statistics, KV cache events.
The known bugs of the release (`upstream_patches.py`) are patched. The first difference ends a workload and is printed;
the exit status is 1 where there was one.
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

from record_drafts import DraftRecorder  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import model_output, stand_in_model  # noqa: E402
from upstream_patches import PATCHES, applied  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.outputs import DraftTokenIds as RealDraftTokenIds  # noqa: E402
from vllm.v1.request import RequestStatus as RealStatus  # noqa: E402

from mini_vllm.core.kv_cache_utils import make_block_hash_with_group_id  # noqa: E402
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput  # noqa: E402
from mini_vllm.request import RequestStatus  # noqa: E402
from mini_vllm.tests.golden.draft_workload import make_draft_workload, proposed, verified  # noqa: E402
from mini_vllm.tests.golden.group_workload import make_group_workload  # noqa: E402
from mini_vllm.tests.golden.replay import DraftReplay, GroupReplay  # noqa: E402
from mini_vllm.tests.golden.scheduler_workload import Workload, make_pressed_workload, pick, sampled_token  # noqa: E402

STEP_LIMIT = 2000
STATS = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")


class Difference(Exception):
    """The two sides differ."""


def state_of(scheduler: Any, is_real: bool) -> dict[str, Any]:
    """All that a scheduler knows, in words that both sides share."""
    manager = scheduler.kv_cache_manager
    pool, managers = manager.block_pool, manager.coordinator.single_type_managers
    requests = {}
    for name, request in scheduler.requests.items():
        counters = (request.num_computed_tokens, request.num_preemptions, request.num_output_placeholders)
        requests[name] = (
            request.status.name,
            request.is_prefill_chunk,
            request.async_tokens_to_discard,
            counters,
            list(request.all_token_ids),
            list(request.spec_token_ids),
            list(request.block_hashes) if manager.enable_caching else [],
        )
    hashes = {}
    for block in pool.blocks:
        if (key := block.block_hash) is not None:
            group = int.from_bytes(key[-4:], "big") if is_real else None
            hashes[block.block_id] = make_block_hash_with_group_id(key[:-4], group) if group is not None else key
    return {
        "requests": requests,
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting],
        "finished": sorted(scheduler.finished_req_ids),
        "free": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        "ref_cnt": [block.ref_cnt for block in pool.blocks[1:]],
        "hashes": hashes,
        "findable": len(pool.cached_block_hash_to_block),
        "tables": [
            {name: [block.block_id for block in blocks] for name, blocks in one.req_to_blocks.items() if blocks}
            for one in managers
        ],
        "num_cached": [{k: v for k, v in one.num_cached_block.items() if v} for one in managers],
    }


def plan_of(output: Any) -> dict[str, Any]:
    """A plan; order counts."""
    cached = output.scheduled_cached_reqs
    return {
        "tokens": list(output.num_scheduled_tokens.items()),
        "new": [(new.req_id, new.block_ids, new.num_computed_tokens) for new in output.scheduled_new_reqs],
        "cached": list(zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)),
        "num_output_tokens": cached.num_output_tokens,
        "all_token_ids": cached.all_token_ids,
        "resumed": cached.resumed_req_ids,
        "drafts": output.scheduled_spec_decode_tokens,
        "preempted": output.preempted_req_ids,
        "finished": output.finished_req_ids,
    }


def compare(where: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raise where a field differs."""
    for key, value in theirs.items():
        if value != ours[key]:
            raise Difference(f"{where}: {key}\n  vLLM 0.22.1 {value}\n  mini_vllm   {ours[key]}")


class Lockstep:
    """One workload through both schedulers."""

    def __init__(self, workload: Workload, folder: str) -> None:
        self.workload = workload
        self.real, self.mini = self._make(workload, folder)
        self.num_steps, self.seen, self.looked_up = 0, Counter[str](), Counter[str]()

    def _make(self, workload: Workload, folder: str) -> tuple[Any, Any]:
        return GroupRecorder(workload, folder), GroupReplay(workload)

    def run(self) -> None:
        """To the end. Raises `Difference`."""
        while self.num_steps < len(self.workload.arrivals) or self.real.scheduler.has_unfinished_requests():
            if self.num_steps == STEP_LIMIT:  # the release's own, seen alike on both sides
                self.seen["does not end, on either side"] += 1
                return
            self._step(self.num_steps)
            self.num_steps += 1

    def _check(self, moment: str) -> None:
        where = f"workload {self.workload.seed} {self.workload.config}, step {self.num_steps}, {moment}"
        compare(where, state_of(self.real.scheduler, True), state_of(self.mini.scheduler, False))

    def _step(self, index: int) -> None:
        if index < len(self.workload.arrivals):
            self.real._before(index)
            self.mini.before(index)
        self._check("before schedule")
        theirs, ours = self.real.scheduler.schedule(), self.mini.scheduler.schedule()
        self.seen["preemption"] += bool(theirs.preempted_req_ids)
        where = f"workload {self.workload.seed} {self.workload.config}, step {index}, plan"
        compare(where, plan_of(theirs), plan_of(ours))
        stats = self.real.scheduler.kv_cache_manager.make_prefix_cache_stats()  # and forget them
        self.looked_up.update({name: getattr(stats, name) for name in STATS})
        mine = self.mini.scheduler.kv_cache_manager.prefix_cache_stats
        compare(where, {name: self.looked_up[name] for name in STATS}, {name: getattr(mine, name) for name in STATS})
        self._check("after schedule")
        if index < len(self.workload.aborts) and self.workload.seed % 3 == 0:
            self._abort_in_flight(self.workload.aborts[index])
        self._update(theirs, ours)
        self._check("after update")
        events, self.mini.wire = self.mini.wire, []
        wire = [[list(x) if isinstance(x, tuple) else x for x in event] for event in self.real.events.take()]
        compare(where, {"events": _plain(wire)}, {"events": _plain(events)})

    def _abort_in_flight(self, number: int | None) -> None:
        """Between plan and result."""
        if number is None or not self.real.scheduler.requests:
            return
        name = pick(list(self.real.scheduler.requests), number + 7)
        self.real.scheduler.finish_requests(name, RealStatus.FINISHED_ABORTED)
        self.mini.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.seen["abort in flight"] += 1

    def _update(self, theirs: Any, ours: Any) -> None:
        """The same tokens to both, in rows of a random order."""
        ids, sampled = list(theirs.num_scheduled_tokens), []
        for name in ids:
            request = self.real.scheduler.requests.get(name)
            due = request is not None and not request.is_prefill_chunk
            sampled.append(self._new_tokens(theirs, name) if due else [])
            self.real.num_sampled[name] += len(sampled[-1])
        rows = list(range(len(ids)))
        self.mini.shuffle(rows)
        shuffled = [ids[row] for row in rows], [sampled[row] for row in rows]
        theirs_too = shuffled[0], [list(tokens) for tokens in shuffled[1]]  # the release cuts these lists
        self.real.in_flight.append((theirs, model_output(*theirs_too)))
        self.mini.in_flight.append((ours, ModelRunnerOutput(*shuffled)))
        if self.workload.config["async"] and ids and len(self.real.in_flight) < 2:
            return
        there = self.real.scheduler.update_from_output(*self.real.in_flight.popleft())
        here = self.mini.scheduler.update_from_output(*self.mini.in_flight.popleft())
        outputs = [one for group in there.values() for one in group.outputs]
        where = f"workload {self.workload.seed} {self.workload.config}, step {self.num_steps}, outputs"
        fields = ("request_id", "new_token_ids", "stop_reason")
        compare(
            where,
            {"outputs": [(*(getattr(o, f) for f in fields), str(o.finish_reason)) for o in outputs]},
            {"outputs": [(*(getattr(o, f) for f in fields), str(o.finish_reason)) for o in here]},
        )
        first = {o.request_id: o.prefill_stats for o in outputs if o.prefill_stats is not None}
        cached = {o.request_id: o.num_cached_tokens for o in here if o.request_id in first}
        compare(where, {"cached": {k: v.num_cached_tokens for k, v in first.items()}}, {"cached": cached})
        self._after_update(there, ids)

    def _new_tokens(self, plan: Any, name: str) -> list[int]:
        return [sampled_token(self.workload.seed, name, self.real.num_sampled[name])]

    def _after_update(self, there: Any, ids: list[str]) -> None:
        """Nothing without drafts."""


class DraftLockstep(Lockstep):
    """With drafts, proposed and accepted as `record_drafts.py` has it."""

    def _make(self, workload: Workload, folder: str) -> tuple[Any, Any]:
        return DraftRecorder(workload, folder), DraftReplay(workload)

    def _new_tokens(self, plan: Any, name: str) -> list[int]:
        drafts = plan.scheduled_spec_decode_tokens.get(name, [])
        self.seen["drafts"] += len(drafts)
        return verified(self.workload.seed, name, self.real.num_sampled[name], list(drafts))

    def _after_update(self, there: Any, ids: list[str]) -> None:
        self.real._count(there)
        stats = [self.real.stats["num_drafts"], self.real.stats["num_draft_tokens"]]
        stats += [self.real.stats["num_accepted_tokens"], self.real.per_position]
        compare(f"workload {self.workload.seed}, step {self.num_steps}", {"n": stats}, {"n": self.mini.stats()})
        if not self.workload.config["async"]:
            k, sampled = self.workload.config["drafts"]["k"], self.real.num_sampled
            drafts = [proposed(self.workload.seed, name, sampled[name], k) for name in ids]
            self.real.scheduler.update_draft_token_ids(RealDraftTokenIds(list(ids), [list(d) for d in drafts]))
            self.mini.scheduler.update_draft_token_ids(DraftTokenIds(list(ids), drafts))


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def workload_of(seed: int) -> Workload:
    """Every fifth is a crowd under the priority policy, with one group of full attention."""
    if seed % 5:
        return make_group_workload(seed)
    workload = make_pressed_workload(seed)
    workload.config["groups"] = [(None, workload.config["block_size"])]
    return workload


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:500", help="A:B, the first and the one after the last")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--drafts", action="store_true", help="workloads with drafts (`draft_workload.py`)")
    args = parser.parse_args()
    start, stop = (int(part) for part in args.seeds.split(":"))
    until, done, steps, seen = time.monotonic() + 60 * args.minutes, 0, 0, Counter[str]()
    differences: list[str] = []
    init_none_hash(sha256)
    with stand_in_model() as folder, applied(Scheduler, list(PATCHES)):
        for seed in range(start, stop):
            if time.monotonic() > until:
                break
            lockstep = (
                DraftLockstep(make_draft_workload(seed), folder) if args.drafts else Lockstep(workload_of(seed), folder)
            )
            try:
                lockstep.run()
            except Difference as difference:
                differences.append(str(difference))
                print(str(difference)[:3000], flush=True)
            done, steps = done + 1, steps + lockstep.num_steps
            config = lockstep.workload.config
            kind = "sliding" if config["groups"][0][0] and len(config["groups"]) == 1 else len(config["groups"])
            seen.update(lockstep.seen)
            seen.update([f"kind {kind}", f"async {config['async']}", f"policy {config['policy']}"])
            seen["not chunked"] += not config.get("chunked", True)
            seen["reset"] += any(reset is not None for reset in lockstep.workload.resets)
    print(f"seeds {start}:{start + done}, {done} workloads, {steps} steps, {len(differences)} differences")
    print(dict(sorted(seen.items())))
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
