"""Lab 03-07: step = max instead of sum; promises; and the step for nothing."""

import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent


def job(impl, name, prompt_len, script, max_tokens=16, **kwargs):
    return impl.Job(name, prompt_len, list(script), max_tokens, **kwargs)


# ---- the clock -----------------------------------------------------------------------------------------------------


def test_one_in_flight_is_a_sum(impl):
    spans = impl.timeline(3, 7, 4, depth=1)
    assert spans == [(0, 3, 3, 10), (10, 13, 13, 20), (20, 23, 23, 30), (30, 33, 33, 40)]


def test_two_in_flight_is_a_maximum(impl):
    spans = impl.timeline(3, 7, 4, depth=2)
    assert spans == [(0, 3, 3, 10), (3, 6, 10, 17), (10, 13, 17, 24), (17, 20, 24, 31)]
    assert all(spans[k].gpu_start == spans[k - 1].gpu_end for k in range(1, 4)), "the GPU never waits"


def test_a_slow_cpu_still_bounds_the_step(impl):
    spans = impl.timeline(9, 4, 5, depth=2)
    assert [span.gpu_end for span in spans] == [13, 22, 31, 40, 49], "9 apart: overlapping hides the smaller of the two"
    assert [span.plan_start for span in spans] == [0, 9, 18, 27, 36]


@pytest.mark.parametrize(("cpu", "gpu"), [(1, 9), (5, 5), (9, 1), (0, 4), (2.5, 3.0)])
def test_steady_state(impl, cpu, gpu):
    for depth, period in ((1, cpu + gpu), (2, max(cpu, gpu)), (3, max(cpu, gpu))):
        spans = impl.timeline(cpu, gpu, 12, depth)
        assert spans[11].gpu_end - spans[10].gpu_end == pytest.approx(period), f"depth {depth}"
        for k in range(1, 12):
            assert spans[k].plan_start >= spans[k - 1].plan_end and spans[k].gpu_start >= spans[k - 1].gpu_end
    assert impl.timeline(cpu, gpu, 0, 2) == []


def test_a_deeper_queue_buys_nothing_more(impl):
    assert impl.timeline(3, 7, 9, 3)[-1].gpu_end == impl.timeline(3, 7, 9, 2)[-1].gpu_end


def test_the_h200(impl):
    """True captures, Qwen3-0.6B shape: the same decode steps with and without async scheduling."""
    rows = [json.loads(line) for line in (HERE / "captured" / "h200-async.jsonl").read_text().splitlines()]
    ms = {(row["exp"], row["batch"]): row["ms_per_step"] for row in rows if row["what"] == "decode_latency"}
    for batch, hidden in ((1, 0.848), (8, 0.957)):
        cpu, gpu = impl.cpu_and_gpu(ms["qwen_sync", batch], ms["qwen_default", batch])
        assert cpu == pytest.approx(hidden) and gpu == ms["qwen_default", batch]
        steps = impl.timeline(cpu, gpu, 100, depth=1)
        assert steps[-1].gpu_end == pytest.approx(100 * ms["qwen_sync", batch])
    rates = {
        e: [r["out_tok_per_s"] for r in rows if r["what"] == "nano_bench" and r["exp"] == e]
        for e in ("qwen_default", "qwen_sync")
    }
    slowest, fastest = min(rates["qwen_default"]), max(rates["qwen_sync"])
    assert slowest > 1.4 * fastest, "tokens/s of 256 requests: the worst run with it against the best without"


def test_what_two_times_can_tell(impl):
    assert impl.cpu_and_gpu(10, 7) == (3, 7)
    assert impl.cpu_and_gpu(4, 4) == (0, 4) and impl.cpu_and_gpu(8, 4) == (4, 4)


@pytest.mark.parametrize("pair", [(4, 5), (9, 4)])
def test_times_that_fit_no_pair(impl, pair):
    with pytest.raises(ValueError, match=f"^no cpu <= gpu has the sum {pair[0]} and the maximum {pair[1]}$"):
        impl.cpu_and_gpu(*pair)


# ---- the books -----------------------------------------------------------------------------------------------------


def test_a_promise_is_counted_as_a_token(impl):
    a = job(impl, "a", 4, [5, 6, 7])
    assert impl.missing(a) == 4
    assert impl.after_schedule(a, 4) is True and (a.num_computed_tokens, a.num_output_placeholders) == (4, 1)
    assert a.num_tokens == 4 and impl.missing(a) == 1, "step 2 can be planned; nobody knows yet what it will read"
    assert impl.after_schedule(a, 1) is True and a.num_output_placeholders == 2
    impl.take(a, 5)
    assert (a.output, a.num_output_placeholders, a.num_tokens, a.finished) == ([5], 1, 5, False)
    assert impl.missing(a) == 1


def test_a_chunk_promises_nothing(impl):
    a = job(impl, "a", 10, [5])
    assert impl.after_schedule(a, 6) is False and a.num_output_placeholders == 0
    assert impl.missing(a) == 4 and impl.after_schedule(a, 4) is True


def test_the_end_that_can_be_foreseen(impl):
    a = job(impl, "a", 4, [5, 6], max_tokens=2)
    impl.after_schedule(a, 4)
    assert not impl.surely_over(a)
    impl.after_schedule(a, 1)
    assert impl.surely_over(a) and impl.missing(a) == 0, "two promised, two allowed: whatever they are, it ends"
    impl.take(a, 5)
    assert impl.surely_over(a) and not a.finished
    impl.take(a, 6)
    assert a.finished and a.num_output_placeholders == 0 and impl.missing(a) == 0


def test_the_end_that_cannot(impl):
    a = job(impl, "a", 4, [5, impl.EOS], max_tokens=9)
    impl.after_schedule(a, 4)
    impl.after_schedule(a, 1)
    assert impl.missing(a) == 1, "only the token itself says that it is EOS"
    impl.take(a, 5)
    impl.take(a, impl.EOS)
    assert a.finished and a.output == [5, 0] and impl.missing(a) == 0


# ---- both together -------------------------------------------------------------------------------------------------


def test_eos_costs_one_row(impl):
    jobs = [job(impl, "a", 4, [5, 6, impl.EOS]), job(impl, "b", 3, [5] * 5, max_tokens=5)]
    trace = impl.run(jobs, depth=2)
    assert trace.plans == [{"a": 4, "b": 3}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"b": 1}]
    assert trace.wasted == 1, "a's row in the fourth step: planned before the third had shown its EOS"
    assert jobs[0].output == [5, 6, 0] and jobs[1].output == [5] * 5


def test_with_one_in_flight_nothing_is_wasted(impl):
    jobs = [job(impl, "a", 4, [5, 6, impl.EOS]), job(impl, "b", 3, [5] * 5, max_tokens=5)]
    trace = impl.run(jobs, depth=1)
    assert trace == impl.Trace([{"a": 4, "b": 3}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"b": 1}, {"b": 1}], 0)


def test_a_foreseen_end_wastes_nothing(impl):
    trace = impl.run([job(impl, "a", 4, [5] * 3, max_tokens=3)], depth=2)
    assert trace == impl.Trace([{"a": 4}, {"a": 1}, {"a": 1}], 0)


def test_the_last_steps_in_flight_count(impl):
    trace = impl.run([job(impl, "a", 4, [impl.EOS])], depth=2)
    assert trace == impl.Trace([{"a": 4}, {"a": 1}], 1), "everybody has gone, and a step for nobody is still computing"
    deeper = impl.run([job(impl, "a", 4, [7, impl.EOS])], depth=4)
    assert deeper.wasted == 3 and len(deeper.plans) == 5, "a deeper pipeline wastes more: depth - 1 rows"


def test_nobody(impl):
    assert impl.run([], 2) == impl.Trace([], 0)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_depth_changes_no_token(impl, depth):
    """However many steps are in flight: the same outputs, the same useful work, and scripts as they were."""
    specs = [("10", 4, [5, 6, impl.EOS, 9], 9), ("9", 1, [impl.EOS], 3), ("2", 6, [7] * 4, 4), ("1", 2, [8], 1)]
    jobs = [job(impl, *spec) for spec in specs]
    trace = impl.run(jobs, depth)
    assert [j.output for j in jobs] == [[5, 6, 0], [0], [7] * 4, [8]]
    assert [j.script for j in jobs] == [spec[2] for spec in specs], "a script was used up"
    assert all(j.finished for j in jobs) and list(trace.plans[0]) == ["10", "9", "2", "1"]
    useful = sum(j.prompt_len + len(j.output) - 1 for j in jobs)
    assert sum(sum(plan.values()) for plan in trace.plans) - trace.wasted == useful
    assert all(plan and all(plan.values()) for plan in trace.plans), "an empty plan, or a row without tokens"


def test_the_books_do_not_look_ahead(impl):
    """Asking changes nothing, and a job's end is known when its token is taken, not from its script."""
    a = job(impl, "a", 4, [impl.EOS])
    before = dict(vars(a))
    assert (impl.missing(a), impl.surely_over(a)) == (4, False) and vars(a) == before
    impl.after_schedule(a, 4)
    assert impl.missing(a) == 1, "its first token will be EOS: only the model knows that"
    impl.take(a, impl.EOS)
    assert a.finished and a.script == [impl.EOS]


def script_of(rng, impl):
    tokens = rng.integers(1, 9, 12).tolist()
    if rng.random() < 0.6:
        tokens[int(rng.integers(0, 12))] = impl.EOS
    return tokens


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_plans_equal_the_engines(impl, seed, depth):
    """Against `Scheduler` and `AsyncScheduler`, which replay the recorded decisions of the real ones."""
    from mini_vllm import (
        AsyncScheduler,
        KVCacheManager,
        ModelRunnerOutput,
        Request,
        SamplingParams,
        Scheduler,
        SchedulerConfig,
    )

    rng = np.random.default_rng(seed)
    specs = [(str(i), int(rng.integers(1, 9)), script_of(rng, impl), int(rng.integers(1, 13))) for i in range(5)]
    kind = AsyncScheduler if depth == 2 else Scheduler
    scheduler = kind(SchedulerConfig(async_scheduling=depth == 2), KVCacheManager(500, 4, False), 1024)
    outputs = {}
    for name, prompt_len, _, max_tokens in specs:
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=[impl.EOS], ignore_eos=True)
        request = Request(name, [3] * prompt_len, params)
        outputs[name] = request.output_token_ids
        scheduler.add_request(request)
    plans, in_flight, given = [], deque(), dict.fromkeys(outputs, 0)
    scripts = {name: script for name, _, script, _ in specs}
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        ids, tokens = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not scheduler.requests[name].is_prefill_chunk
            tokens.append([[*scripts[name], 1][given[name]]] if due else [])
            given[name] += due
        in_flight.append((output, ModelRunnerOutput(ids, tokens)))
        if ids:
            plans.append(dict(output.num_scheduled_tokens))
            if len(in_flight) < depth:
                continue
        scheduler.update_from_output(*in_flight.popleft())
    jobs = [job(impl, *spec) for spec in specs]
    trace = impl.run(jobs, depth)
    assert trace.plans == plans
    assert {j.request_id: j.output for j in jobs} == outputs
    useful = sum(j.prompt_len + len(j.output) - 1 for j in jobs)
    assert trace.wasted == sum(sum(plan.values()) for plan in plans) - useful
