"""Step by step, the scheduler decides as the real one of vLLM 0.22.1 decided: tokens, block ids, hits, preemptions."""

import gzip
import json
import random
from collections import Counter, deque
from functools import lru_cache

import pytest

from mini_vllm.core.kv_cache_utils import get_request_block_hasher
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tests.golden.scheduler_workload import EOS, make_pressed_workload, make_workload, pick, sampled_token
from mini_vllm.tests.helpers import GOLDEN, make_scheduler

TRACES = GOLDEN / "scheduler-traces.json.gz"
BUGS = TRACES.with_name("scheduler-bugs.json.gz")
GROUPS = 10


@lru_cache
def golden():
    return json.loads(gzip.decompress(TRACES.read_bytes()))


class Replay:
    """One workload through our scheduler; records are those of `record_scheduler.py`."""

    def __init__(self, workload):
        config = workload.config
        self.workload = workload
        self.scheduler = make_scheduler(
            config["num_blocks"],
            config["block_size"],
            config["caching"],
            config["max_model_len"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_num_seqs=config["max_num_seqs"],
            long_prefill_token_threshold=config["threshold"],
            scheduling_policy=config["policy"],
            scheduler_reserve_full_isl=config["reserve"],
            async_scheduling=config["async"],
        )
        self.in_flight = deque()
        self.hasher = get_request_block_hasher(config["block_size"]) if config["caching"] else None
        self.num_sampled = Counter()
        self.shuffle = random.Random(workload.seed).shuffle

    def step(self, index):
        scheduler = self.scheduler
        if index < len(self.workload.arrivals):
            self.before(index)
        output = scheduler.schedule()
        cached, stats = output.scheduled_cached_reqs, scheduler.kv_cache_manager.prefix_cache_stats
        record = {
            "tokens": output.num_scheduled_tokens,
            "new": [[new.req_id, new.block_ids[0], new.num_computed_tokens] for new in output.scheduled_new_reqs],
            "cached": [
                list(row)
                for row in zip(
                    cached.req_ids,
                    [ids[0] if ids else None for ids in cached.new_block_ids],
                    cached.num_computed_tokens,
                    cached.num_output_tokens,
                    strict=True,
                )
            ],
            "resumed": sorted(cached.resumed_req_ids),
            "preempted": sorted(output.preempted_req_ids),
            "finished": sorted(output.finished_req_ids),
            "hits": [stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits],
        }
        self.update(output)
        free = scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        return {**record, "free": [len(free), *(block.block_id for block in free[:4])]}

    def before(self, index):
        for arrival in self.workload.arrivals[index]:
            params = SamplingParams(
                max_tokens=arrival.max_tokens, stop_token_ids=arrival.stop_token_ids, ignore_eos=arrival.ignore_eos
            )
            params.update_from_generation_config([], EOS)
            self.scheduler.add_request(
                Request(
                    arrival.request_id,
                    arrival.prompt,
                    params,
                    arrival_time=float(arrival.request_id[1:]),
                    priority=arrival.priority,
                    block_hasher=self.hasher,
                )
            )
        abort, reset = self.workload.aborts[index], self.workload.resets[index]
        if abort is not None and self.scheduler.requests:
            self.scheduler.finish_requests(pick(list(self.scheduler.requests), abort), RequestStatus.FINISHED_ABORTED)
        if reset is not None:
            self.scheduler.reset_prefix_cache(reset_running_requests=reset)

    def update(self, output):
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            due = not self.scheduler.requests[request_id].is_prefill_chunk
            token = sampled_token(self.workload.seed, request_id, self.num_sampled[request_id])
            sampled.append([token] if due else [])
            self.num_sampled[request_id] += due
        rows = list(range(len(ids)))
        self.shuffle(rows)  # a batch that was condensed has its rows in another order than the plan
        self.in_flight.append((output, ModelRunnerOutput([ids[row] for row in rows], [sampled[row] for row in rows])))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        self.scheduler.update_from_output(*self.in_flight.popleft())


def two_columns(theirs, ours):
    """The fields that differ, side by side."""
    rows = [f"{'':10} {'vLLM 0.22.1':60} mini_vllm"]
    rows += [f"{key:10} {theirs[key]!s:60} {ours[key]}" for key in theirs if theirs[key] != ours[key]]
    return "\n".join(rows)


def first_difference(workload, trace):
    """None, or the first step at which the two schedulers part, and a description of it."""
    replay = Replay(workload)
    for index, theirs in enumerate(trace):
        ours = replay.step(index)
        if ours != theirs:
            return index, f"workload {workload.seed} {workload.config}, step {index}:\n{two_columns(theirs, ours)}"
    if replay.scheduler.has_unfinished_requests():
        return len(trace), f"workload {workload.seed}: ours goes on after {len(trace)} steps"
    return None


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_decision_equals_real_vllm(group):
    traces = golden()["traces"]
    for seed in range(group, len(traces), GROUPS):
        difference = first_difference(make_workload(seed), traces[seed])
        assert difference is None, difference[1]


def test_the_recording_is_wide_enough():
    provenance = golden()["provenance"]
    assert provenance["vllm"].startswith("0.22.1")
    assert provenance["workloads"] >= 300 and provenance["steps"] >= 20_000
    assert provenance["steps_with_preemption"] >= 2_000
    assert min(provenance["workloads_by_feature"].values()) >= 20, provenance["workloads_by_feature"]
    assert TRACES.stat().st_size <= 4 << 20


@lru_cache
def bugs():
    return json.loads(gzip.decompress(BUGS.read_bytes()))["bugs"]


@pytest.mark.parametrize("bug", ["index-follows-removal", "forget-blocks-never-written"])
def test_where_the_real_scheduler_is_wrong_ours_does_what_the_patched_one_does(bug):
    """Each bug of the release on workloads that show it: equal to the end once it is patched (`upstream_patches.py`
    says what and why); with the bug, equal up to the step where the two recordings part, and different there."""
    assert len(bugs()[bug]) >= 12
    for pair in bugs()[bug]:
        workload = make_pressed_workload(pair["seed"])
        difference = first_difference(workload, pair["patched"])
        assert difference is None, difference[1]
        parted = first_difference(workload, pair["unpatched"])
        assert parted is not None and parted[0] == pair["parts_at"]


@pytest.mark.parametrize("mutation", ["free order", "one block fewer hit", "preempt the oldest"])
def test_the_replay_would_notice(mutation, monkeypatch):
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from mini_vllm.core.sched.scheduler import Scheduler

    if mutation == "free order":

        def free_head_first(self, request):
            blocks = self.req_to_blocks.pop(request.request_id, [])
            self.coordinator.single_type_managers[0].num_cached_block.pop(request.request_id, None)
            self.block_pool.free_blocks(blocks)

        monkeypatch.setattr(KVCacheManager, "free", free_head_first)
    elif mutation == "one block fewer hit":
        original = KVCacheManager.get_computed_blocks

        def timid_hit(self, request):
            hits, count = original(self, request)
            return (KVCacheBlocks((hits.blocks[0][:-1],)), count - self.block_size) if count else (hits, count)

        monkeypatch.setattr(KVCacheManager, "get_computed_blocks", timid_hit)
    else:

        def preempt_oldest(self, step):
            victim = self.running.pop(0)
            if victim.request_id in step.num_scheduled_tokens:
                step.remove(victim)
            self._preempt_request(victim)
            step.preempted.append(victim)
            return 0

        monkeypatch.setattr(Scheduler, "_preempt_one", preempt_oldest)
    traces = golden()["traces"]
    assert any(first_difference(make_workload(seed), traces[seed]) for seed in range(60))
