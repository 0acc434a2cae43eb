"""Lab 03-04: memory runs out, and nothing but time is lost."""

import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import (
    AsyncScheduler,
    KVCacheManager,
    ModelRunnerOutput,
    Request,
    RequestStatus,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    get_request_block_hasher,
)

HERE = Path(__file__).resolve().parent
BLOCK = 4
A, B = "aaaaaaaa", "bbbbbbbb"
FOUR = [letter * 8 for letter in "abcd"]


def request(name, prompt_len, *, priority=0, arrival=0.0, base=0, outputs=8):
    params = SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True)
    tokens = [base + i for i in range(prompt_len)]
    hasher = get_request_block_hasher(BLOCK)
    return Request(name, tokens, params, priority=priority, arrival_time=arrival, block_hasher=hasher)


def running_requests(kv, *specs):
    """Requests that hold slots for all their tokens but the newest, which they are about to compute."""
    made = []
    for i, (name, prompt_len, kwargs) in enumerate(specs):
        req = request(name, prompt_len, base=1000 * i, **kwargs)
        assert kv.allocate_slots(req, prompt_len) is not None
        req.num_computed_tokens = prompt_len
        req.append_output_token_ids(5)
        req.status = RequestStatus.RUNNING
        made.append(req)
    return made


# ---- the act itself ------------------------------------------------------------------------------------------------


def test_preempted_request_keeps_its_words_and_loses_its_blocks(impl):
    kv = KVCacheManager(16, BLOCK)
    old = request("old", 3)
    waiting = deque([old])
    (victim,) = running_requests(kv, ("v", 8, {}))
    impl.preempt_request(victim, waiting, kv)
    assert victim.status == RequestStatus.PREEMPTED and victim.num_computed_tokens == 0
    assert victim.output_token_ids == [5] and victim.num_tokens == 9, "outputs are paid for: they are kept"
    assert kv.get_block_ids("v") == ([],) and kv.usage == 0.0
    assert list(waiting) == [victim, old], "at the front: it has waited once already"
    impl.preempt_request(victim, waiting, kv)
    assert victim.num_preemptions == 2, "counted each time"


def test_victims(impl):
    a, b, c = (request(n, 4, priority=p, arrival=t) for n, p, t in (("a", 5, 2.0), ("b", 0, 3.0), ("c", 5, 1.0)))
    assert impl.choose_victim([a, b, c]) == 2 == impl.choose_victim([a, b, c], "fcfs")
    assert impl.choose_victim([a, b, c], "priority") == 0, "least urgent, and of those the latest"
    assert impl.choose_victim([b], "priority") == 0 and impl.choose_victim([b, c, a], "priority") == 2
    crowd, twin = [b, a, c], request("d", 4, priority=5, arrival=2.0)
    assert impl.choose_victim(crowd, "priority") == 1 and crowd == [b, a, c], "the list is the caller's"
    assert impl.choose_victim([a, twin, b], "priority") == 1, "alike in both: the last one"
    assert impl.choose_victim([request("n", 4, priority=-1), request("z", 4, priority=0)], "priority") == 1


# ---- making room ---------------------------------------------------------------------------------------------------


def test_room_at_once_preempts_nobody(impl):
    kv, waiting = KVCacheManager(16, BLOCK), deque()
    running = running_requests(kv, ("a", 8, {}), ("b", 8, {}))
    assert impl.make_room(running, 0, 1, {}, waiting, kv) == 0
    assert len(running) == 2 and not waiting and len(kv.get_block_ids("a")[0]) == 3


def test_fcfs_takes_the_tail(impl):
    kv, waiting, plan = KVCacheManager(7, BLOCK), deque(), {}
    running = running_requests(kv, ("a", 8, {}), ("b", 8, {}), ("c", 8, {}))
    c = running[2]
    assert impl.make_room(running, 0, 1, plan, waiting, kv) == 0
    assert [r.request_id for r in running] == ["a", "b"] and list(waiting) == [c]
    assert len(kv.get_block_ids("a")[0]) == 3 and plan == {}, "the share of the request itself is the caller's to enter"
    assert impl.make_room(running, 1, 1, {"a": 1}, waiting, kv) == 1, "c's second block is still free for b"


def test_several_victims_in_one_go(impl):
    kv, waiting = KVCacheManager(7, BLOCK), deque()
    running = running_requests(kv, ("a", 8, {}), ("b", 8, {}), ("c", 8, {}))
    assert impl.make_room(running, 0, 13, {}, waiting, kv) == 0, "13 more tokens are 4 more blocks: b and c must go"
    assert [r.request_id for r in running] == ["a"] and [r.request_id for r in waiting] == ["b", "c"]


def test_the_last_one_gives_way_to_itself(impl):
    kv, waiting, plan = KVCacheManager(5, BLOCK), deque(), {"a": 1}
    running = running_requests(kv, ("a", 7, {}), ("b", 8, {}))
    b = running[1]
    assert impl.make_room(running, 1, 1, plan, waiting, kv) is None
    assert [r.request_id for r in running] == ["a"] and list(waiting) == [b] and plan == {"a": 1}


def test_victim_before_the_cursor_moves_it(impl):
    """The index must follow also where the victim had nothing in the plan (issue 49097 of the real scheduler)."""
    kv, waiting = KVCacheManager(7, BLOCK), deque()
    running = running_requests(kv, ("v", 8, {"priority": 9}), ("x", 8, {}), ("y", 8, {}))
    x = running[1]
    index = impl.make_room(running, 1, 1, {}, waiting, kv, "priority")
    assert index == 0 and running[index] is x, "one place to the left: else the caller's next turn skips y"
    assert [r.request_id for r in waiting] == ["v"]


def test_victim_behind_the_cursor_leaves_it_alone(impl):
    kv, waiting = KVCacheManager(7, BLOCK), deque()
    running = running_requests(kv, ("x", 8, {}), ("v", 8, {"priority": 9}), ("y", 8, {}))
    assert impl.make_room(running, 0, 1, {}, waiting, kv, "priority") == 0


def test_priority_may_choose_the_request_itself(impl):
    kv, waiting = KVCacheManager(5, BLOCK), deque()
    running = running_requests(kv, ("low", 8, {"priority": 9}), ("high", 8, {}))
    assert impl.make_room(running, 0, 1, {}, waiting, kv, "priority") is None
    assert [r.request_id for r in running] == ["high"], "the others stay: the least urgent was asking"


def low_and_high(kv):
    """`low` has computed 8 of 16 prompt tokens and got slots for the last 8 in this step; `high` needs a block."""
    low = request("low", 16, priority=9, base=0)
    kv.allocate_slots(low, 8)
    low.num_computed_tokens, low.status = 8, RequestStatus.RUNNING
    (high,) = running_requests(kv, ("high", 8, {"arrival": 1.0}))
    assert kv.allocate_slots(low, 8) is not None
    return low, high


def test_a_victim_of_the_same_step_gives_its_share_back(impl):
    kv, waiting, plan = KVCacheManager(7, BLOCK), deque(), {"low": 8}
    low, high = low_and_high(kv)
    running = [low, high]
    assert impl.make_room(running, 1, 1, plan, waiting, kv, "priority") == 0
    assert plan == {} and running == [high] and list(waiting) == [low]


def test_blocks_that_nobody_filled_cannot_be_found(impl):
    """The eager-registration hazard: low's blocks were made findable when they were allocated, and stay unwritten."""
    kv, waiting = KVCacheManager(7, BLOCK), deque()
    low, high = low_and_high(kv)
    assert all(kv.block_pool.get_cached_block(h) for h in low.block_hashes), "all four can be found already"
    assert impl.make_room([low, high], 1, 1, {"low": 8}, waiting, kv, "priority") == 0
    found = [kv.block_pool.get_cached_block(h) is not None for h in low.block_hashes]
    assert found[2] is False, "high took low's last block; the third waits in the free queue, and nobody ever wrote it"
    assert found[:2] == [True, True], "the first two were computed in earlier steps: they may be found again"


def test_a_victim_of_an_earlier_step_stays_findable(impl):
    kv, waiting = KVCacheManager(7, BLOCK), deque()
    running = running_requests(kv, ("v", 8, {"priority": 9}), ("x", 8, {}), ("y", 8, {}))
    v = running[0]
    impl.make_room(running, 1, 1, {}, waiting, kv, "priority")
    found = [kv.block_pool.get_cached_block(h) is not None for h in v.block_hashes]
    assert found.count(True) >= 1, "only what this step was to write is forgotten; the rest makes the resume cheap"


# ---- in the engine -------------------------------------------------------------------------------------------------


def test_cramped_pool_matches_roomy_pool(impl):
    cramped, roomy = impl.run([A, B], 5, BLOCK, 8), impl.run([A, B], 256, BLOCK, 8)
    assert cramped == roomy and [len(ids) for ids in cramped] == [8, 8]
    assert cramped[0] != cramped[1], "in the order of the prompts"


def test_the_price_of_survival(impl):
    cramped, roomy = impl.measure([A, B], 5, BLOCK, 8), impl.measure([A, B], 256, BLOCK, 8)
    assert cramped == impl.Report(steps=15, scheduled_tokens=38, preemptions=1)
    assert roomy == impl.Report(steps=8, scheduled_tokens=30, preemptions=0)
    assert impl.recomputed_tokens([A, B], 8, cramped) == 8 and impl.recomputed_tokens([A, B], 8, roomy) == 0


def test_tokens_are_bytes(impl):
    report = impl.measure(["größer", "na"], 64, BLOCK, 3)
    assert impl.recomputed_tokens(["größer", "na"], 3, report) == 0, "6 letters, 8 bytes: nothing was done twice"
    other = impl.measure(["größer", "na"], 64, 2, 3)
    assert other == report, "a roomy pool: the block size changes nothing"


def test_the_block_size_reaches_the_pool(impl):
    assert impl.measure([A, B], 5, 8, 8).preemptions == 0, "4 blocks of 8 are 32 slots"
    assert impl.run([A, B], 5, 8, 8) == impl.run([A, B], 5, BLOCK, 8)


def test_preemption_actually_happens_under_pressure():
    """A survival test whose pool is roomy proves nothing; here the victim is seen."""
    scheduler = Scheduler(SchedulerConfig(), KVCacheManager(5, BLOCK, False), 1024)
    for name in "ab":
        scheduler.add_request(request(name, 8))
    output = scheduler.schedule()
    scheduler.update_from_output(output, ModelRunnerOutput(["a", "b"], [[1], [1]]))
    assert scheduler.schedule().preempted_req_ids == {"b"}


@pytest.mark.parametrize(
    ("num_blocks", "steps", "preemptions"),
    [(8, 66, 4), (9, 61, 5), (11, 49, 5), (13, 38, 3), (17, 31, 2), (22, 27, 1), (25, 23, 1), (29, 20, 0)],
)
def test_the_sweep(impl, num_blocks, steps, preemptions):
    report = impl.measure(FOUR, num_blocks, BLOCK, 20)
    assert (report.steps, report.preemptions) == (steps, preemptions)


def test_request_larger_than_pool_is_rejected(impl):
    with pytest.raises(ValueError, match="KV cache holds 16"):
        impl.run([A], 5, BLOCK, 10)  # 8 + 10 - 1 = 17 slots can never be had
    assert len(impl.run([A], 5, BLOCK, 9)[0]) == 9, "16 slots are just enough"


def test_greedy_and_past_eos(impl, greedy):
    (ids,) = impl.run(["we"], 200, BLOCK, 6)
    assert ids == greedy("we", 6), "greedy, and past EOS, which is its third token"


def test_without_prefix_caching(impl):
    twice = impl.measure([A, A], 64, BLOCK, 4)
    assert twice.scheduled_tokens == 2 * (8 + 3), "a hit would blur the account of what preemption costs"


# ---- the real scheduler, captured ----------------------------------------------------------------------------------


def replay(specs, **limits):
    """The capture's workload through our scheduler: (plan, preempted, hits of the resumed) per step."""
    ahead = limits.get("async_scheduling", False)
    manager = KVCacheManager(limits.pop("num_blocks"), BLOCK, limits.pop("caching"), 128)
    limits = {"scheduling_policy": "priority", "max_num_batched_tokens": 64, "max_num_seqs": 4, **limits}
    scheduler = (AsyncScheduler if ahead else Scheduler)(SchedulerConfig(**limits), manager, 128)
    in_flight, log = deque(), []
    for new in specs:
        for name, first, length, outputs, priority in new:
            scheduler.add_request(request(name, length, priority=priority, base=first, outputs=outputs))
        output = scheduler.schedule()
        cached = output.scheduled_cached_reqs
        hits = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        resumed = {name: hits[name] for name in sorted(cached.resumed_req_ids)}
        log.append((output.num_scheduled_tokens, sorted(output.preempted_req_ids), resumed))
        ids = list(output.num_scheduled_tokens)
        rows = [[] if scheduler.requests[name].is_prefill_chunk else [5] for name in ids]
        in_flight.append((output, ModelRunnerOutput(ids, rows)))
        if not ahead or len(in_flight) == 2:
            scheduler.update_from_output(*in_flight.popleft())
    return log


def captured(name):
    steps = json.loads((HERE / "captured" / "real-scheduler.json").read_text(encoding="utf-8"))[name]
    return [(step["plan"], step["preempted"], step["resumed_with_hits"]) for step in steps]


def test_the_real_scheduler_hits_what_nobody_wrote():
    specs = [[("low", 100, 24, 2, 9)], [("high", 500, 8, 3, 0)], [], [], []]
    ours = replay(specs, num_blocks=9, caching=True, long_prefill_token_threshold=8)
    theirs = captured("findable")
    assert ours[:4] == theirs[:4], "alike up to the preemption and the step after it"
    assert theirs[4] == ({"low": 4}, [], {"low": 20}), "two chunks of 8 were computed: 16 tokens. It hits 20"
    assert ours[4] == ({"low": 8}, [], {"low": 16})


def test_the_real_scheduler_skips_a_request():
    specs = [[("v", 100, 7, 2, 9)], [("x", 200, 8, 8, 0), ("y", 300, 8, 8, 0)], []]
    ours = replay(specs, num_blocks=7, caching=False, async_scheduling=True)
    theirs = captured("skipped")
    assert ours[:2] == theirs[:2]
    assert theirs[2] == ({"x": 1}, ["v"], {}), "y lacks a token, a block is free for it, and it gets no turn"
    assert ours[2] == ({"x": 1, "y": 1}, ["v"], {})


# ---- against the engine's scheduler --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("seed", range(8))
def test_the_running_phase_equals_the_engines(impl, policy, seed):
    """The same crowded step, by the engine's scheduler and by a loop around your `make_room`."""

    def crowd():
        rng = np.random.default_rng(seed)
        specs = []
        for i in range(6):
            kwargs = {"priority": int(rng.integers(0, 3)), "arrival": float(i), "outputs": 9}
            specs.append((f"r{i}", int(rng.integers(5, 9)), kwargs))
        blocks = sum(-(-n // BLOCK) for _, n, _ in specs) + 1
        kv = KVCacheManager(blocks + int(rng.integers(0, 2)), BLOCK)
        return kv, running_requests(kv, *specs)

    kv, running = crowd()
    waiting, plan, index, order = deque(), {}, 0, []
    before = list(running)
    while index < len(running):
        req = running[index]
        at = impl.make_room(running, index, req.num_tokens - req.num_computed_tokens, plan, waiting, kv, policy)
        if at is None:
            break
        plan[req.request_id] = 1
        index = at + 1
    order = [r.request_id for r in before if r not in running]

    theirs, requests = crowd()
    scheduler = Scheduler(SchedulerConfig(scheduling_policy=policy), theirs, 1024)
    scheduler.requests = {r.request_id: r for r in requests}
    scheduler.running = requests
    output = scheduler.schedule()
    assert plan == output.num_scheduled_tokens
    assert set(order) == output.preempted_req_ids == {r.request_id for r in waiting}
    assert {r.request_id: kv.get_block_ids(r.request_id) for r in before} == {
        r.request_id: theirs.get_block_ids(r.request_id) for r in scheduler.requests.values()
    }
