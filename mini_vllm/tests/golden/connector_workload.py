"""Random workloads for the scheduler with a KV connector, from a seed, and what the connector of each says and does.

`FakeStore` is the connector's mind: how many tokens of a request it has, whether they are loaded at once or in the
background, when a transfer ends, which blocks fail, whose blocks it keeps. It answers from the seed and from what it
was asked before, so that two schedulers that ask the same are told the same.

Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from typing import Any

from mini_vllm.tests.golden.draft_workload import make_draft_workload
from mini_vllm.tests.golden.group_workload import make_group_workload
from mini_vllm.tests.golden.scheduler_workload import Workload, make_pressed_workload, pick

KINDS = ("sync", "async", "mixed")


def make_connector_workload(seed: int, wide: bool = False) -> Workload:
    """The workload of this seed: as `make_group_workload`, `make_pressed_workload` or `make_draft_workload`, and a
    connector.

    wide: blocks of odd sizes and more happening at once, beyond what is recorded.

    `config["connector"]`: "policy", the `kv_load_failure_policy`; "kind", how it loads; "hma", whether it is told the
    blocks of all groups; "aligned", whether it has whole blocks alone; "fails", "keeps", "unsure", how often a load
    fails, blocks are kept after the end, and it has no answer yet. `aborts` are lists of numbers;
    `config["aborts_in_flight"]`: step -> such a list, of those that end between plan and result.
    """
    rng = random.Random(f"connector/{wide}/{seed}")
    base = rng.randrange(1 << 30)
    draw = rng.random()
    if draw < 0.3:
        workload = make_draft_workload(base)
    elif draw < 0.45:
        workload = make_pressed_workload(base)
    else:
        workload = make_group_workload(base, "full" if rng.random() < 0.7 else "")
    config = workload.config
    config.setdefault("groups", [(None, config["block_size"])])
    if wide and len(config["groups"]) == 1 and rng.random() < 0.4:
        take_odd_blocks(rng, config)
    one_group = config["groups"] == [(None, config["block_size"])]
    config["num_blocks"] += rng.choice([0, 2, config["num_blocks"] // 2])
    config["connector"] = {
        "policy": rng.choice(["recompute", "fail"]),
        "kind": rng.choice(KINDS),
        "hma": not one_group or rng.random() < 0.4,
        "aligned": rng.random() < 0.5,
        "fails": rng.choice([0.0, 0.3, 0.6]) if one_group else 0.0,
        "keeps": rng.choice([0.0, 0.3, 0.8]),
        "unsure": rng.choice([0.0, 0.2]),
    }
    length = len(workload.arrivals)
    often = 0.12 if wide else 0.06
    workload.aborts = draw_aborts(rng, length, often)
    config["aborts_in_flight"] = draw_aborts_in_flight(rng, length, 0.04)
    use_ids_again(rng, workload, 0.3 if wide else 0.1)
    return workload


def take_odd_blocks(rng: random.Random, config: dict[str, Any]) -> None:
    """Blocks of 3, 5, … tokens, as many more of them as are needed."""
    size, window = rng.choice([3, 5, 6, 7, 12]), config["groups"][0][0]
    tokens = config["num_blocks"] * config["block_size"]
    config["groups"], config["block_size"] = [(window, size)], size
    config["num_blocks"] = -(-tokens // size) + 3


def draw_aborts(rng: random.Random, length: int, often: float) -> Any:
    """For each step None, or numbers that pick whom is ended before it."""
    return [
        [rng.randrange(1000) for _ in range(rng.choice([1, 1, 2, 4]))] if rng.random() < often else None
        for _ in range(length)
    ]


def draw_aborts_in_flight(rng: random.Random, length: int, often: float) -> dict[int, list[int]]:
    """Step, or number of a batch -> numbers that pick who ends between its plan and its result."""
    return {
        step: [rng.randrange(1000) for _ in range(rng.choice([1, 2]))] for step in range(length) if rng.random() < often
    }


def use_ids_again(rng: random.Random, workload: Workload, often: float) -> None:
    """Some arrivals have the id of an earlier one; `free_name` says what becomes of it where that is still there."""
    earlier: list[str] = []
    for arrival in (arrival for step in workload.arrivals for arrival in step):
        if arrival.arrival_time is None:
            arrival.arrival_time = float(arrival.request_id[1:])
        if earlier and rng.random() < often:
            arrival.request_id = rng.choice(earlier)
        earlier.append(arrival.request_id)


def free_name(name: str, taken: Any) -> str:
    """The name, or one like it where it is taken."""
    while name in taken:
        name += "x"
    return name


class FakeStore:
    """What the connector of a workload says. `calls` are those since `take_calls`, in words.

    loading, sending: request id -> the step in which its transfer ends.
    """

    def __init__(self, workload: Workload) -> None:
        config = workload.config
        self.seed, self.settings, self.block_size = workload.seed, config["connector"], config["groups"][0][1]
        self.step = 0
        self.asked: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.answers: dict[str, tuple[int, int, bool]] = {}
        self.loading: dict[str, int] = {}
        self.failing: dict[str, list[tuple[int, int]]] = {}
        self.sending: dict[str, int] = {}
        self.reported: set[str] = set()
        self.now: list[tuple[str, int]] = []
        self.loads: list[list[Any]] = []
        self.events: list[int] = []
        self.calls: list[list[Any]] = []

    def take_calls(self) -> list[list[Any]]:
        """What was asked since the last call."""
        calls, self.calls = self.calls, []
        return calls

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int | None, bool]:
        """None: ask again; 0: nothing; a part; all but one token, or all of them where they come in the background."""
        name = request.request_id
        self.asked[name] += 1
        rng, s = random.Random(f"{self.seed}/{name}/{self.asked[name]}"), self.settings
        answer = self._answer(rng, s, request.num_tokens - num_computed)
        self.answers[name] = (num_computed, answer[0] or 0, answer[1])
        self.calls.append(["ask", name, num_computed, *answer])
        return answer

    def _answer(self, rng: random.Random, s: dict[str, Any], missing: int) -> tuple[int | None, bool]:
        if rng.random() < s["unsure"]:
            return None, False
        in_background = s["kind"] == "async" or (s["kind"] == "mixed" and rng.random() < 0.5)
        most = missing if in_background else missing - 1
        amount = rng.choice([0, 0, most, most, rng.randint(0, most), rng.randint(0, most)])
        if s["aligned"]:
            amount -= amount % self.block_size
        return (amount, in_background) if amount else (0, False)

    def on_new_request(self, request: Any) -> None:
        """A request has come."""
        self.calls.append(["new", request.request_id])

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external: int) -> None:
        """There are blocks; the loads begin."""
        name, ids = request.request_id, blocks.get_block_ids()
        self.calls.append(["blocks", name, [list(group) for group in ids], num_external])
        if not num_external:
            return
        num_computed, amount, in_background = self.answers[name]
        assert amount == num_external, f"{name}: {num_external} tokens to load, but {amount} were offered"
        rng = random.Random(f"{self.seed}/{name}/{self.asked[name]}/load")
        there = ids[0][num_computed // self.block_size : -(-(num_computed + amount) // self.block_size)]
        bad = [block for block in there if rng.random() < 0.3] or there[-1:]
        fails = rng.random() < self.settings["fails"]
        self.loads.append([name, list(there), in_background])
        if in_background:
            self.loading[name] = end = self.step + rng.randint(0, 4)
            self.failing[name] = [(rng.randint(self.step, end), block) for block in bad] if fails else []
        elif fails:
            self.now += [(name, block) for block in bad]

    def build_connector_meta(self, output: Any) -> list[list[Any]]:
        """The loads that begin with this step."""
        loads, self.loads = self.loads, []
        seen = [dict(output.num_scheduled_tokens), sorted(output.finished_req_ids), sorted(output.preempted_req_ids)]
        self.calls.append(["meta", loads, *seen])
        return loads

    def work(self) -> tuple[list[str], list[str], list[int]]:
        """What the worker's half reports of a step, once it has run: sent, received, and blocks that failed."""
        bad = sorted({block for _, block in self.now})
        self.now = []
        for failing in self.failing.values():
            bad += [block for step, block in failing if step == self.step]
        received = sorted(name for name, end in self.loading.items() if end <= self.step and name not in self.reported)
        sent = sorted(name for name, end in self.sending.items() if end <= self.step and name not in self.reported)
        self.reported.update(received, sent)
        self.step += 1
        return sent, received, sorted(set(bad))

    def update_connector_output(self, output: Any) -> None:
        """The scheduler takes in what the worker's half reported."""
        sent, received = sorted(output.finished_sending or ()), sorted(output.finished_recving or ())
        self.calls.append(["output", sent, received, sorted(output.invalid_block_ids)])
        for name in received:
            del self.loading[name], self.failing[name]
        for name in sent:
            del self.sending[name]
            self.events.append(len(self.calls))
        self.reported.difference_update(sent, received)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Keeps the blocks of some for a while. A load under way ends by itself: such a request is not sent."""
        name = request.request_id
        self.ended[name] += 1
        rng = random.Random(f"{self.seed}/{name}/{self.ended[name]}/end")
        keeps = name not in self.loading and rng.random() < self.settings["keeps"]
        params = {"kept": name} if keeps and rng.random() < 0.5 else None
        if keeps:
            self.sending[name] = self.step + rng.randint(0, 5)
        ids = [list(group) if isinstance(group, list | tuple) else group for group in block_ids]
        self.calls.append(["end", name, request.status.name, request.num_computed_tokens, ids, keeps])
        return keeps, params

    def take_events(self) -> list[int]:
        """A number for each event."""
        events, self.events = self.events, []
        return events

    def reset_cache(self) -> bool:
        """Forgets nothing that matters here."""
        self.calls.append(["reset"])
        return True


def end_of_transfers(store: FakeStore) -> bool:
    """Whether nothing is under way."""
    return not store.loading and not store.sending


def scheduler_state(scheduler: Any, transfers: list[list[str]], hash_of: Any) -> list[Any]:
    """All that a scheduler knows between two halves of a step. transfers: received, and failed; hash_of: a block's."""
    manager = scheduler.kv_cache_manager
    pool, managers = manager.block_pool, manager.coordinator.single_type_managers
    requests = {
        name: [
            r.status.name, r.is_prefill_chunk, r.async_tokens_to_discard, r.num_computed_tokens, r.num_preemptions,
            r.num_output_placeholders, len(r.all_token_ids), len(r.spec_token_ids),
        ]
        for name, r in scheduler.requests.items()
    }  # fmt: skip
    return [
        sorted(requests.items()),
        [r.request_id for r in scheduler.running],
        [r.request_id for r in scheduler.waiting],
        [r.request_id for r in scheduler.skipped_waiting],
        sorted(scheduler.finished_req_ids),
        transfers,
        [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        [block.ref_cnt for block in pool.blocks[1:]],
        [[block.block_id, hash_of(block)] for block in pool.blocks if block.block_hash is not None],
        [sorted((name, [b.block_id for b in blocks]) for name, blocks in one.req_to_blocks.items() if blocks)
         for one in managers],
        [sorted((name, count) for name, count in one.num_cached_block.items() if count) for one in managers],
    ]  # fmt: skip


def checksum_of(*parts: Any) -> int:
    """Of anything that JSON knows, and bytes."""
    text = json.dumps(parts, default=lambda value: value.hex() if isinstance(value, bytes) else list(value))
    return zlib.crc32(text.encode())


def picks(ids: list[str], numbers: list[int]) -> list[str]:
    """The requests that an abort means, each once."""
    return list(dict.fromkeys(pick(ids, number) for number in numbers))


def short(record: dict[str, Any], drafts: dict[str, list[int]], calls: list[Any], rest: list[Any]) -> dict[str, Any]:
    """A step's record in few bytes: the plan's tokens, drafts and victims, what the connector was asked of requests,
    without block ids; a checksum over all."""
    asked = [call[:2] + call[2:5] for call in calls if call[0] == "ask" and call[3] != 0]
    asked += [[call[0], call[1]] for call in calls if call[0] == "end"]
    kept = {"tokens": record["tokens"], "drafts": {k: len(v) for k, v in drafts.items()}}
    kept |= {"preempted": record["preempted"], "calls": asked}
    return {**kept, "rest": checksum_of(record, drafts, calls, rest)}
