"""What the scheduler decides, step by step."""

import numpy as np
import pytest

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import RequestStatus
from mini_vllm.tests.helpers import check_scheduler, make_request, make_scheduler, run_step


def add(scheduler, request_id, num_tokens, **kwargs):
    base = kwargs.pop("base", 1000 * len(scheduler.requests))
    request = make_request(request_id, [base + i for i in range(num_tokens)], block_size=4, **kwargs)
    scheduler.add_request(request)
    return request


def test_counters_of_one_request():
    scheduler = make_scheduler()
    request = add(scheduler, "a", 5, max_tokens=4)
    seen = []
    while scheduler.has_unfinished_requests():
        run_step(scheduler)
        seen.append((request.status.name, request.num_computed_tokens, request.num_tokens))
    assert seen == [("RUNNING", 5, 6), ("RUNNING", 6, 7), ("RUNNING", 7, 8), ("FINISHED_LENGTH_CAPPED", 8, 9)]
    assert scheduler.kv_cache_manager.usage == 0.0 and scheduler.has_finished_requests()


def test_budget_chunks_the_front_and_defers_the_rest():
    scheduler = make_scheduler(max_num_batched_tokens=8, max_num_seqs=4)
    add(scheduler, "a", 11, max_tokens=4)
    add(scheduler, "b", 7, max_tokens=4)
    steps = []
    while scheduler.has_unfinished_requests():
        steps.append(run_step(scheduler).num_scheduled_tokens)
    assert steps == [{"a": 8}, {"a": 3, "b": 5}, {"a": 1, "b": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"b": 1}]


def test_long_prefill_threshold_caps_each_request():
    scheduler = make_scheduler(long_prefill_token_threshold=16)
    add(scheduler, "a", 40)
    assert [run_step(scheduler).num_scheduled_tokens["a"] for _ in range(4)] == [16, 16, 8, 1]


def test_without_chunked_prefill_a_prompt_waits_for_a_whole_budget():
    scheduler = make_scheduler(max_num_batched_tokens=10, max_num_seqs=4, enable_chunked_prefill=False)
    add(scheduler, "a", 6)
    add(scheduler, "b", 6)
    assert run_step(scheduler).num_scheduled_tokens == {"a": 6}
    assert run_step(scheduler).num_scheduled_tokens == {"a": 1, "b": 6}


def test_seats_are_checked_at_admission():
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        add(scheduler, name, 4, max_tokens=2)
    assert list(run_step(scheduler).num_scheduled_tokens) == ["a", "b"]
    assert list(run_step(scheduler).num_scheduled_tokens) == ["a", "b"]
    assert list(run_step(scheduler).num_scheduled_tokens) == ["c"]


def test_prefix_hit_is_a_head_start_and_shares_blocks():
    scheduler = make_scheduler()
    add(scheduler, "a", 9, base=0)
    run_step(scheduler)
    request = add(scheduler, "b", 10, base=0)
    assert run_step(scheduler).num_scheduled_tokens == {"a": 1, "b": 2}
    assert request.num_cached_tokens == 8
    manager = scheduler.kv_cache_manager
    assert manager.get_block_ids("a")[0][:2] == manager.get_block_ids("b")[0][:2]


def test_preemption_takes_the_newest_and_recomputes_it():
    scheduler = make_scheduler(num_blocks=5, caching=False)
    first = add(scheduler, "a", 8, max_tokens=8)
    second = add(scheduler, "b", 7, max_tokens=8)
    run_step(scheduler)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 0
    output = run_step(scheduler)  # a needs its third block: b has to go
    assert output.preempted_req_ids == {"b"} and output.num_scheduled_tokens == {"a": 1}
    assert second.status == RequestStatus.PREEMPTED and second.num_computed_tokens == 0
    assert second.num_output_tokens == 1 and list(scheduler.waiting) == [second]
    resumed = None
    while scheduler.has_unfinished_requests():
        output = run_step(scheduler)
        if "b" in output.scheduled_cached_reqs.resumed_req_ids:
            resumed = output
        check_scheduler(scheduler)
    assert resumed is not None and resumed.num_scheduled_tokens["b"] == 8  # its prompt and its one output token
    assert resumed.scheduled_cached_reqs.all_token_ids["b"][:7] == second.prompt_token_ids
    assert (first.num_preemptions, second.num_preemptions, scheduler.num_preemptions) == (0, 1, 1)
    assert first.num_output_tokens == second.num_output_tokens == 8


def test_reserve_full_isl_admits_only_what_fits_as_a_whole():
    limits = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "num_blocks": 6, "caching": False}
    for reserve, expected in ((True, ["a"]), (False, ["a", "b"])):
        scheduler = make_scheduler(scheduler_reserve_full_isl=reserve, **limits)
        add(scheduler, "a", 6, max_tokens=1)
        add(scheduler, "b", 16, max_tokens=1)
        assert list(run_step(scheduler).num_scheduled_tokens) == expected


def test_priority_admits_the_urgent_and_preempts_the_least():
    scheduler = make_scheduler(num_blocks=7, caching=False, scheduling_policy="priority", max_num_seqs=4)
    add(scheduler, "late", 7, priority=5, arrival=2.0, max_tokens=8)
    add(scheduler, "urgent", 7, priority=0, arrival=3.0, max_tokens=8)
    add(scheduler, "early", 7, priority=5, arrival=1.0, max_tokens=8)
    assert list(run_step(scheduler).num_scheduled_tokens) == ["urgent", "early", "late"]
    run_step(scheduler)
    output = run_step(scheduler)  # all want a third block, none is free
    assert output.preempted_req_ids == {"late"} and list(output.num_scheduled_tokens) == ["urgent", "early"]
    while scheduler.has_unfinished_requests():
        run_step(scheduler)
        check_scheduler(scheduler)


def test_priority_victim_before_the_cursor_skips_nobody():
    """The victim stands before the cursor and had nothing scheduled: upstream then skips a request (see the code)."""
    scheduler = make_scheduler(num_blocks=7, caching=False, scheduling_policy="priority", max_model_len=1024)
    victim = add(scheduler, "victim", 7, priority=9, max_tokens=64 - 48)
    for name in ("x", "y"):
        add(scheduler, name, 8, priority=0, max_tokens=8)
    scheduler.running[:] = [victim, *[scheduler.requests[n] for n in ("x", "y")]]
    scheduler.waiting.remove_requests(set(scheduler.running))
    for request in scheduler.running:
        request.status = RequestStatus.RUNNING
        scheduler.kv_cache_manager.allocate_slots(request, request.num_tokens)
        request.num_computed_tokens = request.num_tokens
    for name in ("x", "y"):
        scheduler.requests[name].append_output_token_ids(1)
    output = scheduler.schedule()  # victim has nothing to compute; x takes its blocks; y must still get its turn
    assert output.preempted_req_ids == {"victim"} and output.num_scheduled_tokens == {"x": 1, "y": 1}


def test_victim_of_the_same_step_leaves_no_findable_block_behind():
    scheduler = make_scheduler(num_blocks=9, scheduling_policy="priority", long_prefill_token_threshold=8)
    low = make_request("low", 24, block_size=4, priority=9, arrival=0.0, max_tokens=2)
    scheduler.add_request(low)
    run_step(scheduler)
    high = make_request("high", [500 + i for i in range(8)], block_size=4, priority=0, arrival=1.0, max_tokens=3)
    scheduler.add_request(high)
    run_step(scheduler)
    output = run_step(scheduler)  # low is given its third chunk of 8, and then high needs a block
    assert output.preempted_req_ids == {"low"} and output.num_scheduled_tokens == {"high": 1}
    check_scheduler(scheduler)
    pool = scheduler.kv_cache_manager.block_pool
    assert [pool.get_cached_block(h) is not None for h in low.block_hashes] == [True] * 4 + [False] * 2
    while low.status == RequestStatus.PREEMPTED:
        output = run_step(scheduler)
    assert output.scheduled_cached_reqs.num_computed_tokens[-1] == 16  # it finds again what was computed, no more
    assert low.num_cached_tokens == 16  # it had no token out yet, so the last start counts, as upstream


def test_failed_request_ends_alone_and_is_not_found_again():
    scheduler = make_scheduler()
    for name in "ab":
        add(scheduler, name, 8, base=ord(name) * 100)
    output = scheduler.schedule()
    outputs = scheduler.update_from_output(output, ModelRunnerOutput(["a", "b"], [[], [3]], errors={"a": "NaN"}))
    assert [(o.request_id, str(o.finish_reason), o.stop_reason) for o in outputs if o.finished] == [
        ("a", "error", "NaN")
    ]
    again = make_request("c", [ord("a") * 100 + i for i in range(9)], block_size=4)
    assert scheduler.kv_cache_manager.get_computed_blocks(again)[1] == 0
    check_scheduler(scheduler)


def test_abort_waiting_and_running():
    scheduler = make_scheduler(max_num_seqs=1)
    for name in "abc":
        add(scheduler, name, 4)
    run_step(scheduler)
    assert scheduler.finish_requests(["b", "a", "nobody"], RequestStatus.FINISHED_ABORTED) == ["b", "a"]
    check_scheduler(scheduler)
    assert run_step(scheduler).finished_req_ids == {"a", "b"} and list(scheduler.requests) == ["c"]
    assert run_step(scheduler).finished_req_ids == set()


def test_requests_that_can_never_fit_are_refused():
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    with pytest.raises(ValueError, match="needs room for 13 tokens, but the KV cache holds 12"):
        scheduler.add_request(make_request("a", 10, max_tokens=4))
    scheduler.add_request(make_request("a", 10, max_tokens=3))
    with pytest.raises(ValueError, match="request_id 'a' belongs to an unfinished request"):
        scheduler.add_request(make_request("a", 2, max_tokens=1))


def test_config_errors():
    for limits, message in (
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1, got 0"),
        ({"max_num_batched_tokens": 4, "max_num_seqs": 8}, "must be at least max_num_seqs"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            SchedulerConfig(**limits)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("seed", range(6))
def test_random_workloads_keep_every_invariant(policy, seed):
    rng = np.random.default_rng(seed)
    scheduler = make_scheduler(
        num_blocks=int(rng.integers(14, 30)),
        max_num_batched_tokens=int(rng.integers(8, 40)),
        max_num_seqs=int(rng.integers(1, 9)),
        long_prefill_token_threshold=int(rng.choice([0, 5])),
        scheduler_reserve_full_isl=bool(rng.integers(2)),
        scheduling_policy=policy,
    )
    finished = preempted = 0
    for step in range(4000):
        if step < 200 and rng.random() < 0.4:
            prefix = [1, 2, 3, 4] * int(rng.integers(0, 3))
            prompt = prefix + rng.integers(0, 9, int(rng.integers(1, 20))).tolist()
            request = make_request(
                f"r{step}",
                prompt,
                block_size=4,
                priority=int(rng.integers(3)),
                arrival=step,
                max_tokens=int(rng.integers(1, 20)),
            )
            scheduler.add_request(request)
        if rng.random() < 0.03 and scheduler.requests:
            scheduler.finish_requests(str(rng.choice(list(scheduler.requests))), RequestStatus.FINISHED_ABORTED)
        before = len(scheduler.requests)
        output = run_step(scheduler, token=int(rng.integers(9)))
        finished += before - len(scheduler.requests)
        preempted += len(output.preempted_req_ids)
        assert output.total_num_scheduled_tokens <= scheduler.max_num_scheduled_tokens
        check_scheduler(scheduler)
        if step >= 200 and not scheduler.requests:
            break
    assert not scheduler.requests and finished > 20


@pytest.mark.parametrize("order", [["b", "a"], ["a", "b"]])
def test_blocks_are_freed_in_the_order_of_the_plan_not_of_the_rows(order):
    scheduler = make_scheduler()
    for name in "ab":
        add(scheduler, name, 4, base=ord(name) * 100, max_tokens=1)
    output = scheduler.schedule()
    scheduler.update_from_output(output, ModelRunnerOutput(order, [[7], [7]]))
    free = scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
    assert [block.block_id for block in free[-2:]] == [1, 2]


def test_cached_tokens_are_those_of_the_last_start_before_the_first_token():
    scheduler = make_scheduler(num_blocks=7, max_num_batched_tokens=5, max_num_seqs=5, scheduler_reserve_full_isl=False)
    add(scheduler, "r0", 4, max_tokens=8)
    run_step(scheduler)
    request = add(scheduler, "r1", 17, base=100, max_tokens=4)
    while not request.output_token_ids:
        run_step(scheduler)
    assert request.num_preemptions and request.num_cached_tokens == 12


def test_without_chunking_the_threshold_cuts_before_the_budget_is_asked():
    scheduler = make_scheduler(
        max_model_len=20, max_num_batched_tokens=20, enable_chunked_prefill=False, long_prefill_token_threshold=5
    )
    for name in ("r0", "r1"):
        add(scheduler, name, 18, base=ord(name[1]) * 100)
    assert run_step(scheduler).num_scheduled_tokens == {"r0": 5, "r1": 5}


def test_equals_under_priority_do_not_preempt_each_other_for_ever():
    scheduler = make_scheduler(
        num_blocks=8,
        caching=False,
        scheduling_policy="priority",
        scheduler_reserve_full_isl=False,
        max_num_batched_tokens=12,
        max_num_seqs=4,
        long_prefill_token_threshold=8,
    )
    for name in "ab":
        scheduler.add_request(make_request(name, 24, max_tokens=2))
    for _ in range(60):
        run_step(scheduler)
    assert not scheduler.has_unfinished_requests()
