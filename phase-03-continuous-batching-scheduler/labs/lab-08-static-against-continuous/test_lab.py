"""Lab 03-08: who may enter, what that costs in steps, and when it costs nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from course.labs import load
from mini_vllm import Request

HERE = Path(__file__).resolve().parent
COST = json.loads((HERE / "captured" / "step_cost.json").read_text(encoding="utf-8"))
SEEDS = range(4)
LIMIT = 2000  # calls in one run: beyond it something runs for ever


def at_most(call, what):
    """The function; whoever calls it without end is stopped, long before the time limit of the lab."""
    calls = []

    def bounded(*args):
        calls.append(1)
        assert len(calls) < LIMIT, f"{what} more than {LIMIT} times: a loop that does not end"
        return call(*args)

    return bounded


def engine(**args):
    from mini_vllm import LLMEngine

    its = LLMEngine(num_blocks=256, enable_prefix_caching=False, **args)
    its.step = at_most(its.step, "the engine made a step")
    return its


def make_jobs(impl, seed, n=14):
    """Prompts of 1 to 8 tokens, outputs of 1 to 19; and seats, 1 to 6."""
    rng = np.random.default_rng(seed)
    jobs = [
        impl.Job(f"r{i}", tuple(map(int, rng.integers(1, 250, rng.integers(1, 9)))), int(rng.integers(1, 20)))
        for i in range(n)
    ]
    return jobs, int(rng.integers(1, 7))


def static_fifo(num_unfinished, waiting, seats):
    return [] if num_unfinished else list(waiting[:seats])


def continuous_fifo(num_unfinished, waiting, seats):
    return list(waiting[: max(0, seats - num_unfinished)])


def policies(impl):
    both = {"static": impl.static_policy, "continuous": impl.continuous_policy}
    return {name: at_most(policy, f"the {name} policy was asked") for name, policy in both.items()}


def the_mix(impl, seed=0):
    """The workload of the README: 32 jobs of 8 or 64 output tokens."""
    return load(HERE / "measure.py").workload(impl, seed)


def no_request(self, *args, **kwargs):
    raise AssertionError("predict_steps made a request: it does without an engine")


def predict(impl, *args):
    """Your `predict_steps`, called while no engine in this process can take a request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "__init__", no_request)
        return impl.predict_steps(*args)


def both(impl, jobs, seats, static=static_fifo, continuous=continuous_fifo):
    asked = [at_most(policy, "the policy was asked") for policy in (static, continuous)]
    return tuple(predict(impl, jobs, policy, seats) for policy in asked)


class Runs(dict):
    """(seed, "static" or "continuous") -> (jobs, seats, what her policy did in the engine); each is served once."""

    def __init__(self, impl):
        super().__init__()
        self.impl = impl

    def __missing__(self, key):
        jobs, seats = make_jobs(self.impl, key[0])
        self[key] = jobs, seats, self.impl.serve(engine(), jobs, policies(self.impl)[key[1]], seats)
        return self[key]

    def all(self):
        return [((seed, name), *self[seed, name]) for seed in SEEDS for name in ("static", "continuous")]


@pytest.fixture(scope="module")
def runs(impl):
    return Runs(impl)


def told(jobs, seats, refill):
    """Milliseconds by the two costs of `captured/step_cost.json`, without any code of hers."""
    waiting, left, ms = list(jobs), [], 0.0
    while waiting or left:
        free = seats - len(left) if refill or not left else 0
        new, waiting = waiting[:free], waiting[free:]
        rows = len(left) + sum(len(job.prompt_token_ids) for job in new)
        ms += COST["fixed_ms"] + COST["per_row_ms"] * rows
        left = [missing - 1 for missing in [*left, *(job.max_tokens for job in new)] if missing > 1]
    return ms


def test_your_prediction(impl):
    """Compared before anything is shown: a wrong guess says only on which side it lies."""
    mine = impl.predicted_gain()
    want = told(the_mix(impl), 8, False) / told(the_mix(impl), 8, True)
    if not 0.95 * want <= mine <= 1.05 * want:
        side = "too high: which part of a step's cost is paid per row?" if mine > want else "too low"
        pytest.fail(f"predicted_gain() is {mine}, and that is {side}", pytrace=False)


def test_the_two_doors(impl):
    """Each policy alone, asked as `serve` asks it."""
    jobs = tuple(make_jobs(impl, 1, 5)[0])
    for unfinished, seats, static, continuous in ((0, 3, 3, 3), (1, 3, 0, 2), (3, 3, 0, 0), (0, 9, 5, 5), (4, 3, 0, 0)):
        for policy, want in ((impl.static_policy, static), (impl.continuous_policy, continuous)):
            got = policy(unfinished, jobs, seats)
            words = f"{policy.__name__}, {unfinished} unfinished, 5 waiting, {seats} seats"
            assert len(got) == want, f"{words}: lets in {len(got)}, expected {want}"
            assert len(set(got)) == len(got) and set(got) <= set(jobs), f"{words}: each once, of those who wait"
    assert impl.static_policy(0, (), 3) == impl.continuous_policy(2, (), 3) == [], "nobody waits"


def test_every_job_is_served_whole(impl, runs):
    for (seed, name), jobs, _, served in runs.all():
        got = {name: len(ids) for name, ids in served.token_ids.items()}
        assert got == {job.request_id: job.max_tokens for job in jobs}, f"{name}, seed {seed}: lengths of the outputs"


def test_seats_are_never_exceeded(impl, runs):
    for (seed, name), _, seats, served in runs.all():
        most = max(map(len, served.steps))
        assert most <= seats, f"{name}, seed {seed}: {most} jobs in one step, seats {seats}"


def test_static_closes_the_door(impl, runs):
    for seed in SEEDS:
        jobs, seats, served = runs[seed, "static"]
        seen, batches = set(), 0
        for number, step in enumerate(served.steps):
            new = set(step) - seen
            old = sorted(set(step) & seen)
            words = f"static, seed {seed}: a batch starts in step {number} while {old} of the one before still run"
            assert not (new and old), f"{words} (this looks like *Refilling*)"
            batches += bool(new)
            seen |= new
        want = math.ceil(len(jobs) / seats)
        assert batches == want, f"static, seed {seed}: {batches} batches of {len(jobs)} jobs, expected {want}"


def test_continuous_leaves_no_seat_empty(impl, runs):
    for seed in SEEDS:
        jobs, seats, served = runs[seed, "continuous"]
        started = set()
        for number, step in enumerate(served.steps):
            started |= set(step)
            wait = len(jobs) - len(started)
            words = f"continuous, seed {seed}: step {number} has {len(step)} jobs of {seats} while {wait} wait"
            assert not wait or len(step) == seats, words


def test_prediction_equals_the_engine(impl):
    """Jobs that nobody has served yet: first the prediction, then the engine."""
    for seed, name in ((seed, name) for seed in range(20, 24) for name in ("static", "continuous")):
        jobs, seats = make_jobs(impl, seed)
        got = predict(impl, jobs, policies(impl)[name], seats)
        want = [sum(step.values()) for step in impl.serve(engine(), jobs, policies(impl)[name], seats).steps]
        counts = f"{name}, seed {seed}: predicted {len(got)} steps, the engine took {len(want)}"
        assert len(got) == len(want), f"{counts}: the step of the prompt gives a token already"
        assert got == want, f"{name}, seed {seed}: rows of the steps"


def last_come(num_unfinished, waiting, seats):
    return list(waiting[::-1][:1]) if num_unfinished < min(seats, 2) else []


def test_serve_asks_the_policy(impl):
    """A policy of the test's own: one a step, at most two at a time, the last of the queue first."""
    jobs = [impl.Job(name, (1, 2, 3, 4), n) for name, n in (("a", 3), ("b", 1), ("c", 2))]
    steps = impl.serve(engine(), jobs, at_most(last_come, "the policy was asked"), 5).steps
    assert [list(step) for step in steps] == [["c"], ["c", "b"], ["a"], ["a"], ["a"]], "who ran in each step"
    rows = predict(impl, tuple(jobs), at_most(last_come, "the policy was asked"), 5)
    assert rows == [4, 5, 4, 1, 1], "rows of each step"
    chunky = impl.serve(engine(max_num_batched_tokens=64), tuple(jobs), continuous_fifo, 3).steps
    assert chunky[0] == {"a": 4, "b": 4, "c": 4}, "the shares of a step, by the job's own name"


def test_the_rows_are_the_same(impl):
    static, continuous = both(impl, the_mix(impl), 8)
    assert (sum(static), sum(continuous)) == (744, 744), "rows of all steps: 32 prompts of 4, and 648 - 32 decodes"
    assert (len(static), len(continuous)) == (200, 96), "steps"


def test_total_ms(impl):
    assert impl.total_ms([4, 1, 1], 2.0, 0.5) == 9.0, "three steps of 2 ms, six rows of half a millisecond"
    rows = [4, 1, 1]
    assert impl.total_ms(rows, 0.0, 3.0) == 18.0 and impl.total_ms([], 2.0, 0.5) == 0
    assert rows == [4, 1, 1], "the rows are the caller's"


def test_gain_lies_between_one_and_the_steps(impl):
    for seed in range(8):
        static, continuous = both(impl, *make_jobs(impl, seed))
        ratio = len(static) / len(continuous)
        assert impl.gain(static, continuous, 3.0, 0.0) == pytest.approx(ratio), "fixed cost only: the ratio of steps"
        assert impl.gain(static, continuous, 0.0, 3.0) == pytest.approx(1.0), "cost per row only: nothing is gained"
        between = impl.gain(static, continuous, 1.0, 0.1)
        assert 1.0 <= between <= ratio, f"seed {seed}: gain {between} outside of [1, {ratio}]"
    assert impl.gain([1, 1, 1], [3], 2.0, 1.0) == pytest.approx(9 / 5), "9 ms against 5 ms"
    assert impl.gain([], [], 2.0, 1.0) == 1.0 and impl.gain([1], [1], 0.0, 0.0) == 1.0, "where nothing costs anything"


def test_where_it_vanishes(impl):
    mix = the_mix(impl)
    equal = [impl.Job(job.request_id, job.prompt_token_ids, 8) for job in mix]
    by_length = sorted(mix, key=lambda job: job.max_tokens)
    cases = {"equal lengths": (equal, 8), "one seat": (mix, 1), "a seat for each": (mix, 32), "more seats": (mix, 99)}
    for name, (jobs, seats) in cases.items():
        mine = both(impl, jobs, seats, impl.static_policy, impl.continuous_policy)
        assert impl.gain(*mine, 1.0, 0.1) == 1.0, f"{name}: {len(mine[0])} steps against {len(mine[1])}"
    for jobs in (by_length, by_length[::-1]):
        assert [len(rows) for rows in both(impl, jobs, 8)] == [88, 88], "sorted by length"


def test_same_tokens(impl, runs):
    for seed in SEEDS:
        static, continuous = (runs[seed, name][2].token_ids for name in ("static", "continuous"))
        assert static == continuous, f"seed {seed}: a policy changed what was said"


def test_pocket_float64(impl):
    from mini_vllm import LLM, SamplingParams

    pocket = HERE.parents[2] / "models" / "pocket"
    rng = np.random.default_rng(1)
    jobs = [impl.Job(str(i), tuple(map(int, rng.integers(5, 4000, 3 + i))), 1 + 2 * (i % 3)) for i in range(5)]
    alone = LLM(pocket, dtype="float64", enable_prefix_caching=False)
    want = {}
    for job in jobs:
        params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True)
        (output,) = alone.generate({"prompt_token_ids": list(job.prompt_token_ids)}, params, use_tqdm=False)
        want[job.request_id] = list(output.outputs[0].token_ids)
    for name, policy in policies(impl).items():
        assert impl.serve(alone.llm_engine, jobs, policy, 3).token_ids == want, f"{name}: tokens of a trained model"


@pytest.mark.parametrize("seats", [0, -3])
def test_bad_seats(impl, seats):
    jobs, _ = make_jobs(impl, 0)
    with pytest.raises(ValueError, match=rf"^seats must be at least 1, got {seats}$"):
        impl.serve(engine(), jobs, at_most(continuous_fifo, "the policy was asked"), seats)
    with pytest.raises(ValueError, match=rf"^seats must be at least 1, got {seats}$"):
        predict(impl, jobs, at_most(continuous_fifo, "the policy was asked"), seats)


def test_a_policy_that_admits_nobody(impl):
    jobs, _ = make_jobs(impl, 0, 2)
    for call in (lambda p: predict(impl, jobs, p, 3), lambda p: impl.serve(engine(), jobs, p, 3)):
        with pytest.raises(RuntimeError, match=r"^the policy admits nobody while 2 jobs wait and nothing runs$"):
            call(at_most(lambda num_unfinished, waiting, seats: [], "nobody enters, and the policy was asked"))


def test_a_policy_that_overbooks(impl):
    jobs, _ = make_jobs(impl, 0, 3)
    for call in (lambda p: predict(impl, jobs, p, 2), lambda p: impl.serve(engine(), jobs, p, 2)):
        with pytest.raises(RuntimeError, match=r"^the policy admits 3 to 0 unfinished jobs, seats 2$"):
            call(at_most(lambda num_unfinished, waiting, seats: list(waiting), "the policy was asked"))


def test_leaves_things_alone(impl):
    its, (jobs, _) = engine(), make_jobs(impl, 3)
    before, schedule = list(jobs), its.scheduler.schedule

    def faulty(num_unfinished, waiting, seats):
        return list(waiting[:1]) if len(waiting) > 12 else list(waiting)

    def broken(num_unfinished, waiting, seats):
        return list(waiting[:1]) if len(waiting) > 12 else [{}["a policy has errors of its own"]]

    for policy in (continuous_fifo, faulty, broken, static_fifo):
        try:
            impl.serve(its, jobs, at_most(policy, "the policy was asked"), 3)
        except RuntimeError as error:
            assert policy is faulty and "the policy admits 12 to" in str(error), f"raised {error}"
        except KeyError:
            assert policy is broken, "no other policy raises a KeyError"
        assert jobs == before, "serve changed the list of jobs"
        assert not its.has_unfinished_requests(), "serve left requests behind"
        assert its.scheduler.schedule == schedule, "the engine's schedule is not its own any more"
    predict(impl, jobs, at_most(continuous_fifo, "the policy was asked"), 3)
    assert jobs == before, "predict_steps changed the list of jobs"


def test_no_jobs(impl):
    static, continuous = policies(impl).values()
    assert impl.serve(engine(), [], static, 2) == impl.Served({}, [])
    assert predict(impl, [], continuous, 2) == []
