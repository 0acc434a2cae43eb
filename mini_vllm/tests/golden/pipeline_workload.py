"""Random workloads for a core with several batches in flight, from a seed, and a stand-in for the stages that compute
them: when a result is there, what was sampled, who is aborted while it is waited for.

Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from mini_vllm.tests.golden.connector_workload import (
    checksum_of,
    draw_aborts,
    draw_aborts_in_flight,
    take_odd_blocks,
    use_ids_again,
)
from mini_vllm.tests.golden.draft_workload import make_draft_workload, proposed, verified
from mini_vllm.tests.golden.group_workload import make_group_workload
from mini_vllm.tests.golden.scheduler_workload import Arrival, Workload, make_pressed_workload, sampled_token

NEVER = 1_000_000
"""Steps after which a result is there that has to be waited for."""


def make_pipeline_workload(seed: int, wide: bool = False) -> Workload:
    """The workload of this seed: as `make_group_workload`, `make_pressed_workload` or, where scheduling does not run
    ahead, `make_draft_workload` with drafts without a model.

    wide: blocks of odd sizes and more happening at once, beyond what is recorded.

    `config["stages"]`: 2 to 4, as many batches are in flight. `aborts` are lists of numbers;
    `config["aborts_in_flight"]`: number of a batch -> such a list, of those that end while its result is waited for.
    """
    rng = random.Random(f"pipeline/{wide}/{seed}")
    base, draw = rng.randrange(1 << 30), rng.random()
    if draw < 0.25:
        workload = make_draft_workload(base)
        workload.config["async"], workload.config["drafts"]["method"] = False, "ngram"
    elif draw < 0.5:
        workload = make_pressed_workload(base)
    else:
        workload = make_group_workload(base, "full" if rng.random() < 0.5 else "")
    config = workload.config
    config.setdefault("groups", [(None, config["block_size"])])
    if "drafts" not in config:
        config["async"] = rng.random() < 0.4
    if wide and len(config["groups"]) == 1 and rng.random() < 0.4:
        take_odd_blocks(rng, config)
    config["stages"] = rng.choice([2, 2, 3, 4])
    config["num_blocks"] += rng.choice([0, 0, 2, config["num_blocks"] // 2])
    length, often = len(workload.arrivals), 0.12 if wide else 0.06
    workload.aborts = draw_aborts(rng, length, often)
    often = 0.1 if wide else 0.05
    workload.resets = [rng.random() < 0.6 if rng.random() < often else None for _ in range(length)]
    config["aborts_in_flight"] = draw_aborts_in_flight(rng, length, 0.05)
    use_ids_again(rng, workload, 0.3 if wide else 0.1)
    return workload


def make_reset_in_flight() -> Workload:
    """One request of four tokens, and a reset while the only step that it needs is in flight."""
    config = {
        "groups": [(None, 4)], "block_size": 4, "max_model_len": 32, "max_num_batched_tokens": 16, "max_num_seqs": 2,
        "threshold": 0, "policy": "fcfs", "reserve": True, "caching": False, "num_blocks": 16, "async": False,
        "stages": 2, "aborts_in_flight": {},
    }  # fmt: skip
    arrivals = [[Arrival("r0", [1, 2, 3, 4], 3, [], True, 0)], [], [], []]
    return Workload(0, config, arrivals, [None] * 4, [None, True, None, None])


class Pending:
    """A batch that has been sent; `result` is asked for once."""

    def __init__(self, stages: Stages, number: int, plan: Any, ids: list[str], sampled: list[list[int]]) -> None:
        self.stages, self.number, self.plan, self.ids, self.sampled = stages, number, plan, ids, sampled
        rng = random.Random(f"{stages.workload.seed}/{number}/time")
        self.ready = stages.step + rng.choice([1, 2, 3, NEVER, NEVER, NEVER])

    def done(self) -> bool:
        """Whether the result is there."""
        return self.stages.step >= self.ready

    def result(self, timeout: float | None = None) -> Any:
        """What was sampled, in rows of a random order, as `stages.make_output` has it."""
        return self.stages.finish(self)


class Stages:
    """Stands in for the executor and all ranks.

    Args:
        make_output: from ids and tokens. abort: ends the requests that numbers mean.
        is_due: whether a request of the plan just made gets a token.

    Attributes:
        step: of the core, set by the one who drives it. plan: the one made in this step. taken: the batch taken in.
    """

    def __init__(self, workload: Workload, make_output: Any, abort: Any, is_due: Any) -> None:
        self.workload, self.make_output, self.abort, self.is_due = workload, make_output, abort, is_due
        self.step, self.number = 0, 0
        self.plan: Any = None
        self.taken: Pending | None = None
        self.in_flight: list[Pending] = []
        self.num_sampled: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def begin_step(self, step: int) -> None:
        """Nothing is planned yet."""
        self.step, self.plan, self.taken = step, None, None

    def names_in_flight(self) -> set[str]:
        """Requests of the batches in flight."""
        return {name for pending in self.in_flight for name in pending.ids}

    def send(self, plan: Any) -> Pending:
        """A plan goes to the first stage; what will be sampled is decided here."""
        ids, drafts, seed = list(plan.num_scheduled_tokens), plan.scheduled_spec_decode_tokens, self.workload.seed
        self.plan, sampled = plan, []
        for name in ids:
            tokens, count = [], self.num_sampled[name]
            if self.is_due(name):
                has_drafts = "drafts" in self.workload.config
                given = list(drafts.get(name, []))
                tokens = verified(seed, name, count, given) if has_drafts else [sampled_token(seed, name, count)]
            sampled.append(tokens)
            self.num_sampled[name] += len(tokens)
        pending = Pending(self, self.number, plan, ids, sampled)
        self.number += 1
        self.in_flight.append(pending)
        self.seen[f"in_flight={len(self.in_flight)}"] += 1
        return pending

    def finish(self, pending: Pending) -> Any:
        """The oldest batch comes back."""
        assert self.in_flight.pop(0) is pending, "results are taken in as they were planned"
        self.taken = pending
        self.seen["done early"] += pending.ready < NEVER and pending.done()
        numbers = self.workload.config["aborts_in_flight"].get(pending.number)
        if numbers:
            self.abort(numbers)
            self.seen["aborted in flight"] += 1
        rows = list(range(len(pending.ids)))
        random.Random(f"{self.workload.seed}/{pending.number}/rows").shuffle(rows)
        return self.make_output([pending.ids[row] for row in rows], [list(pending.sampled[row]) for row in rows])

    def drafts(self) -> list[tuple[str, list[int]]]:
        """What the drafter offers for the requests of the batch just taken in; none where none is due."""
        assert self.taken is not None
        k, seed = self.workload.config["drafts"]["k"], self.workload.seed
        both = zip(self.taken.ids, self.taken.sampled, strict=True)
        return [(name, proposed(seed, name, self.num_sampled[name], k) if new else []) for name, new in both]


def plan_record(plan: Any) -> dict[str, Any] | None:
    """All of a plan, the order of its requests included."""
    if plan is None:
        return None
    cached = plan.scheduled_cached_reqs
    rows = (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens)
    return {
        "tokens": list(plan.num_scheduled_tokens.items()),
        "new": [[new.req_id, list(new.block_ids), new.num_computed_tokens] for new in plan.scheduled_new_reqs],
        "cached": [[i, None if ids is None else list(ids), *rest] for i, ids, *rest in zip(*rows, strict=True)],
        "sent_back": cached.new_token_ids,
        "all_token_ids": sorted(cached.all_token_ids.items()),
        "drafts": {name: list(tokens) for name, tokens in plan.scheduled_spec_decode_tokens.items()},
        "resumed": sorted(cached.resumed_req_ids),
        "preempted": sorted(plan.preempted_req_ids),
        "finished": sorted(plan.finished_req_ids),
    }


def short(last: dict[str, Any]) -> list[int]:
    """A step in few bytes: tokens of the plan, requests in it, victims, the batch taken in (-1: none); a checksum over
    all of `last`."""
    plan = last["plan"] or {"tokens": [], "preempted": []}
    counts = [sum(count for _, count in plan["tokens"]), len(plan["tokens"]), len(plan["preempted"])]
    return [*counts, last["taken"], checksum_of(last)]
