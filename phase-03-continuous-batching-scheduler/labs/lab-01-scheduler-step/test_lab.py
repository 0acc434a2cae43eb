"""Lab 03-01: the plan of one step, limit by limit, and then against the engine's own scheduler."""

from collections import deque

import numpy as np
import pytest


def plan(impl, running, waiting, kv=None, budget=64, seats=8, threshold=0, preempt=None):
    """Call the learner's function with lists of her requests; waiting becomes a deque."""
    kv = impl.FakeKV(10_000) if kv is None else kv
    return impl.schedule_step(
        running,
        waiting,
        kv,
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        long_prefill_token_threshold=threshold,
        preempt=preempt,
    )


def prompts(impl, *lengths):
    return deque(impl.Req(name, n) for name, n in zip("ABCDEFGHIJ", lengths, strict=False))


def decoding(impl, *names, tokens=9):
    return [impl.Req(name, tokens, tokens - 1) for name in names]


@pytest.mark.parametrize(
    ("lacks", "budget", "threshold", "expected"),
    [
        (100, 30, 0, 30),
        (100, 2048, 16, 16),
        (100, 8, 16, 8),
        (5, 2048, 16, 5),
        (16, 2048, 16, 16),
        (5, 2048, 0, 5),
        (0, 8, 16, 0),
        (-3, 8, 0, 0),
        (2, 8, 1, 1),
        (9, 0, 0, 0),
        (9, -2, 4, 0),
    ],
)
def test_clamp_chunks_and_budgets(impl, lacks, budget, threshold, expected):
    assert impl.clamp(lacks, budget, threshold) == expected


def test_no_threshold_is_the_default(impl):
    assert impl.clamp(5000, 6000) == 5000


def test_budget_caps_total_tokens(impl):
    waiting, running = prompts(impl, 8, 8, 8), []
    assert plan(impl, running, waiting, budget=10) == {"A": 8, "B": 2}, "A whole, B in part, nothing is left for C"
    assert [r.request_id for r in running] == ["A", "B"] and [r.request_id for r in waiting] == ["C"]


def test_max_num_seqs_caps_running(impl):
    waiting, running = prompts(impl, *[3] * 10), []
    assert plan(impl, running, waiting, seats=4) == dict.fromkeys("ABCD", 3)
    assert len(running) == 4 and len(waiting) == 6
    assert "".join(r.request_id for r in waiting) == "EFGHIJ", "the others keep their order"


def test_seats_do_not_limit_those_who_run(impl):
    running = decoding(impl, "A", "B", "C")
    assert plan(impl, running, deque(), seats=3) == {"A": 1, "B": 1, "C": 1}


def test_chunked_prefill_caps_per_request(impl):
    waiting, running = prompts(impl, 100), []
    assert plan(impl, running, waiting, budget=2048, threshold=16) == {"A": 16}
    running[0].num_computed_tokens = 16
    assert plan(impl, running, waiting, budget=2048, threshold=16) == {"A": 16}, "a running prompt is capped too"


def test_no_threshold_in_a_step_is_the_default(impl):
    limits = {"max_num_batched_tokens": 99, "max_num_seqs": 1}
    assert impl.schedule_step([], prompts(impl, 50), impl.FakeKV(99), **limits) == {"A": 50}


def test_running_scheduled_before_waiting_admitted(impl):
    running, waiting = decoding(impl, "Z"), prompts(impl, 20)
    assert list(plan(impl, running, waiting, budget=8).items()) == [("Z", 1), ("A", 7)]


def test_a_running_prompt_takes_what_it_needs_before_others(impl):
    running = [impl.Req("P", 30, 10), *decoding(impl, "Q")]
    assert plan(impl, running, deque(), budget=12) == {"P": 12}, "in the order of the list, not shortest first"


def test_who_lacks_nothing_is_passed_over(impl):
    running = [impl.Req("idle", 9, 9), *decoding(impl, "Q")]
    assert plan(impl, running, deque()) == {"Q": 1}, "no entry with 0 tokens, and Q gets its turn"


def test_budget_runs_out_among_the_running(impl):
    running, waiting = decoding(impl, "P", "Q", "R"), prompts(impl, 4)
    assert plan(impl, running, waiting, budget=2) == {"P": 1, "Q": 1}
    assert len(waiting) == 1


def test_exactly_used_up(impl):
    running, waiting = decoding(impl, "P"), prompts(impl, 3, 3)
    assert plan(impl, running, waiting, budget=4) == {"P": 1, "A": 3}
    assert [r.request_id for r in waiting] == ["B"], "B must not be admitted with nothing to compute"


def test_admission_stops_when_memory_exhausted(impl):
    kv, running, waiting = impl.FakeKV(8), [], prompts(impl, 8, 4, 1)
    assert plan(impl, running, waiting, kv) == {"A": 8}
    assert [r.request_id for r in waiting] == ["B", "C"], "B waits, and C may not overtake it"


def test_each_is_asked_once_in_the_order_of_the_plan(impl):
    """The cache is asked for exactly the share, and nobody who gets nothing is asked at all."""
    kv, running = Cramped(99), [impl.Req("idle", 9, 9), *decoding(impl, "P"), impl.Req("Q", 30, 10)]
    assert plan(impl, running, prompts(impl, 8, 8), kv, budget=26, threshold=16) == {"P": 1, "Q": 16, "A": 8, "B": 1}
    assert kv.asked == [("P", 1), ("Q", 16), ("A", 8), ("B", 1)], "asked for more, or more often, than is needed"


def test_ids_need_not_sort(impl):
    running = [impl.Req(name, 9, 8) for name in ("10", "9", "2")]
    assert list(plan(impl, running, deque([impl.Req("1", 4), impl.Req("0", 4)]))) == ["10", "9", "2", "1", "0"]


def test_a_refusal_at_the_head_blocks_the_queue(impl):
    kv, running, waiting = impl.FakeKV(4), [], prompts(impl, 9, 2)
    assert plan(impl, running, waiting, kv) == {}
    assert running == [] and [r.request_id for r in waiting] == ["A", "B"]


def test_a_head_start_counts(impl):
    waiting, running = deque([impl.Req("hit", 100, 96)]), []
    assert plan(impl, running, waiting, budget=8) == {"hit": 4}, "96 tokens were found in the cache"


def test_a_waiting_request_with_nothing_to_compute_is_an_error(impl):
    full, running = impl.Req("full", 16, 16), []
    waiting = deque([full])
    with pytest.raises(ValueError, match=r"^waiting request 'full' has nothing to compute$"):
        plan(impl, running, waiting)
    assert list(waiting) == [full] and running == [], "it stays where it is"


def test_counters_are_left_alone(impl):
    running, waiting = decoding(impl, "Z"), prompts(impl, 20)
    plan(impl, running, waiting)
    assert [r.num_computed_tokens for r in running] == [8, 0], "planning is not computing"


class Cramped:
    """A cache with one free slot for each of `grants`; then it refuses until something is freed."""

    def __init__(self, free):
        self.free_slots, self.asked = free, []

    def allocate_slots(self, request, num_new_tokens):
        self.asked.append((request.request_id, num_new_tokens))
        if num_new_tokens > self.free_slots:
            return None
        self.free_slots -= num_new_tokens
        return []


def with_preemption(impl, running, waiting, free, gain, **kwargs):
    kv, victims = Cramped(free), []

    def preempt(victim):
        victims.append(victim.request_id)
        waiting.appendleft(victim)
        kv.free_slots += gain

    return plan(impl, running, waiting, kv, preempt=preempt, **kwargs), victims, kv


def test_the_last_of_the_list_gives_way(impl):
    running, waiting = decoding(impl, "A", "B", "C"), deque()
    made, victims, kv = with_preemption(impl, running, waiting, free=0, gain=5)
    assert victims == ["C"] and made == {"A": 1, "B": 1}
    assert kv.asked == [("A", 1), ("A", 1), ("B", 1)], "refused, then asked again for the same request"
    assert [r.request_id for r in running] == ["A", "B"] and [r.request_id for r in waiting] == ["C"]


def test_as_many_give_way_as_it_takes(impl):
    running, waiting = [impl.Req("A", 20, 10), *decoding(impl, "B", "C", "D")], deque()
    made, victims, _ = with_preemption(impl, running, waiting, free=0, gain=5)
    assert made == {"A": 10} and victims == ["D", "C", "B"], "two make room for A; B, refused and last, goes itself"
    assert [r.request_id for r in running] == ["A"] and [r.request_id for r in waiting] == ["B", "C", "D"]


def test_who_is_last_gives_way_to_itself(impl):
    running, waiting = decoding(impl, "A", "B"), prompts(impl, 3)
    made, victims, _ = with_preemption(impl, running, waiting, free=1, gain=50)
    assert made == {"A": 1} and victims == ["B"]
    assert [r.request_id for r in running] == ["A"] and [r.request_id for r in waiting] == ["B", "A"]


def test_nobody_is_admitted_after_a_preemption(impl):
    running, waiting = decoding(impl, "P", "Q", "R"), prompts(impl, 2)
    made, victims, kv = with_preemption(impl, running, waiting, free=0, gain=50)
    assert victims == ["R"] and made == {"P": 1, "Q": 1}, "there is room, budget and a seat, and yet"
    assert kv.free_slots == 48 and len(waiting) == 2


def test_without_preempt_a_refusal_ends_the_step(impl):
    running, waiting = [*decoding(impl, "P"), impl.Req("big", 90, 1), *decoding(impl, "R")], prompts(impl, 1)
    assert plan(impl, running, waiting, Cramped(5)) == {"P": 1}
    assert len(running) == 3 and len(waiting) == 1


def test_an_empty_list_is_not_a_refusal(impl):
    victims, waiting = [], deque([impl.Req("W", 2)])
    made = plan(impl, decoding(impl, "A", "B"), waiting, impl.FakeKV(99), preempt=victims.append)
    assert made == {"A": 1, "B": 1, "W": 2}
    assert victims == [], "[] means: granted, the last block had room"


def test_advance_moves_counters_and_names_who_is_due(impl):
    requests = [impl.Req("chunk", 20), impl.Req("done", 5), impl.Req("decode", 9, 8), impl.Req("idle", 4, 4)]
    made = {"decode": 1, "chunk": 16, "done": 5}
    assert impl.advance(iter(requests), made) == ["done", "decode"], "of those in the plan, who has caught up"
    assert [r.num_computed_tokens for r in requests] == [16, 5, 9, 4]
    assert made == {"decode": 1, "chunk": 16, "done": 5}, "the plan is the caller's, and was changed"
    assert impl.advance(requests, {}) == [], "who had caught up before is not sampled again"


def test_a_whole_life(impl):
    """The guide's trace: (4, 0), then (5, 4), (6, 5): far behind is prefill, one behind is decode."""
    request, kv, seen = impl.Req("a", 4), impl.FakeKV(99), []
    running, waiting = [], deque([request])
    for _ in range(3):
        seen.append((request.num_tokens, request.num_computed_tokens, plan(impl, running, waiting, kv)["a"]))
        assert impl.advance(running, {"a": seen[-1][2]}) == ["a"]
        request.num_tokens += 1
    assert seen == [(4, 0, 4), (5, 4, 1), (6, 5, 1)]


# ---- against the engine --------------------------------------------------------------------------------------------


def engine_plans(seed, limits, num_blocks, prompt_lengths, max_tokens, learner=None):
    """The plans of a random workload: by the engine's scheduler, or by the learner's function over the same parts."""
    from mini_vllm import KVCacheManager, ModelRunnerOutput, Request, SamplingParams, Scheduler, SchedulerConfig

    manager = KVCacheManager(num_blocks, 4, False, 4096)
    config = SchedulerConfig(scheduler_reserve_full_isl=False, **limits)
    scheduler = Scheduler(config, manager, 4096)
    rng, plans = np.random.default_rng(seed), []
    pending = [
        Request(str(i), [7] * n, SamplingParams(max_tokens=m, ignore_eos=True))
        for i, (n, m) in enumerate(zip(prompt_lengths, max_tokens, strict=True))
    ]
    running, waiting = [], deque()

    class Cache:
        def allocate_slots(self, request, num_new_tokens):
            blocks = manager.allocate_slots(request, num_new_tokens)
            return None if blocks is None else blocks.get_block_ids()[0]

    def preempt(victim):
        manager.free(victim)
        victim.num_computed_tokens = 0
        waiting.appendleft(victim)

    while pending or running or waiting or scheduler.has_unfinished_requests():
        for _ in range(int(rng.integers(0, 3))):
            if pending:
                waiting.append(pending.pop(0)) if learner else scheduler.add_request(pending.pop(0))
        if learner is None:
            output = scheduler.schedule()
            ids = list(output.num_scheduled_tokens)
            tokens = [[] if scheduler.requests[i].is_prefill_chunk else [9] for i in ids]
            plans.append(list(output.num_scheduled_tokens.items()))
            scheduler.update_from_output(output, ModelRunnerOutput(ids, tokens))
            continue
        step = learner.schedule_step(running, waiting, Cache(), preempt=preempt, **limits)
        plans.append(list(step.items()))
        for request_id in learner.advance(list(running), step):
            (request,) = (r for r in running if r.request_id == request_id)
            request.append_output_token_ids(9)
            if request.num_output_tokens == request.max_tokens:
                running.remove(request)
                manager.free(request)
    return plans


@pytest.mark.parametrize("seed", range(12))
def test_plans_equal_the_engines(impl, seed):
    rng = np.random.default_rng(seed)
    lengths, outputs = rng.integers(1, 40, 10).tolist(), rng.integers(1, 12, 10).tolist()
    budget = int(rng.integers(4, 40))
    limits = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": int(rng.integers(1, min(budget, 6) + 1)),
        "long_prefill_token_threshold": int(rng.choice([0, 3, 9])),
    }
    num_blocks = int(rng.integers(14, 24))
    case = (seed, limits, num_blocks, lengths, outputs)
    assert engine_plans(*case, learner=impl) == engine_plans(*case)
